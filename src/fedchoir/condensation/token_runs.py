"""Runs of tokens that texts have in common."""

import torch
from torch import Tensor

BASE = 6364136223846793005  # odd, so that no token is lost in the overflow of 64 bits


def runs(texts: Tensor, length: int) -> Tensor:
    """A hash of every run of ``length`` tokens in padded texts, ascending, each once.

    >>> len(runs(torch.tensor([[5, 6, 5, 6, 0]]), 2))
    2
    """
    if texts.shape[1] < length:
        return torch.zeros(0, dtype=torch.int64)
    windows = texts.unfold(1, length, 1)
    windows = windows[(windows != 0).all(dim=2)]
    hashed = torch.zeros(len(windows), dtype=torch.int64)
    for column in windows.unbind(dim=1):
        hashed = (hashed ^ (hashed >> 29)) * BASE + column
    return hashed.unique()


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
