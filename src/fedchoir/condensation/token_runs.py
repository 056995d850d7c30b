"""What padded texts, N×length token ids, have in common: runs of tokens, and tokens."""

import torch
import torch.nn.functional as F
from torch import Tensor

BUCKETS = 8192  # that tokens and pairs are hashed to where texts are compared
BASE = 6364136223846793005  # odd, so that no token is lost in the overflow of 64 bits


def runs(texts: Tensor, length: int) -> Tensor:
    """A hash of every run of ``length`` tokens in padded texts, ascending, each once.

    >>> len(runs(torch.tensor([[5, 6, 5, 6, 0]]), 2))
    2
    """
    if texts.shape[1] < length:
        return torch.zeros(0, dtype=torch.int64)
    hashed, complete = _windows(texts, length)
    return hashed[complete].unique()


def _windows(texts: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """A hash of the tokens in every window, and whether none of them is padding: N×(width − length + 1) each."""
    windows = texts.unfold(1, length, 1)
    hashed = torch.zeros(windows.shape[:2], dtype=torch.int64)
    for column in windows.unbind(dim=2):
        hashed = (hashed ^ (hashed >> 29)) * BASE + column
    return hashed, (windows != 0).all(dim=2)


def longest_common_run(texts: Tensor, others: Tensor) -> int:
    """Tokens in the longest run that any of the texts shares with any of the others.

    >>> longest_common_run(torch.tensor([[1, 2, 3, 4]]), torch.tensor([[9, 2, 3, 0], [4, 3, 2, 1]]))
    2
    """
    low, high = 0, min(texts.shape[1], others.shape[1])
    while low < high:  # texts with a longer run in common have a shorter one, too
        middle = (low + high + 1) // 2
        common = torch.isin(runs(texts, middle), runs(others, middle)).any()
        low, high = (middle, high) if common else (low, middle - 1)
    return low


def bags(texts: Tensor) -> Tensor:
    """How often each text has every token and every pair of tokens, N×2·BUCKETS, both scaled to length 1."""
    found = []
    for length in range(1, min(2, texts.shape[1]) + 1):
        hashed, complete = _windows(texts, length)
        counts = torch.zeros(len(texts), BUCKETS).scatter_add_(1, hashed % BUCKETS, complete.float())
        found.append(F.normalize(counts, dim=1))
    return torch.cat(found, dim=1)


def fewest_texts(texts: Tensor, others: Tensor) -> int:
    """How many of the others have that token of ``texts`` which the fewest of them have.

    >>> fewest_texts(torch.tensor([[5, 6, 0]]), torch.tensor([[5, 6, 7], [5, 5, 0]]))
    1
    """
    tokens = texts[texts != 0].unique()
    return min((int((others == token).any(dim=1).sum()) for token in tokens), default=0)
