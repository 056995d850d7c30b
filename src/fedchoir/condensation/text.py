"""Condensation of texts: new ones whose tokens and pairs of tokens are as frequent as in the private ones of a class.

That is distribution matching, too. For an embedding table of independent random rows e_v with E‖e_v‖² = 1, and
frequencies p and q of tokens v,

    E_e ‖ Σ_v p_v e_v − Σ_v q_v e_v ‖² = ‖ p − q ‖²

so class means of mean embeddings match under all random tables where frequencies match, and under random filters over
two tokens where those of pairs do. Token ids have no gradient. Texts are written by herding instead (Chen, Welling and
Smola, UAI 2010): the next token is the one that is farthest behind its frequency.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedchoir.condensation.token_runs import runs
from fedchoir.data.samples import Samples

LONGEST_RUN = 3  # tokens in a row that a written text may share with a private one


@dataclass(frozen=True)
class Frequencies:
    """What the texts of one class have in common.

    Attributes:
        tokens: ids that may be sent, ascending.
        shares: of these tokens in a text, in the mean; they sum to 1.
        pairs: neighbouring tokens that may be sent, M×2 positions in ``tokens``, in the order of the first; the first
            is −1 at the start of a text.
        follow: for each pair, how often the second one follows the first.
        first, last: ids that all texts begin and end with, such as [CLS] and [SEP].
        length: of a text, in the mean, without those.
    """

    tokens: Tensor
    shares: Tensor
    pairs: Tensor
    follow: Tensor
    length: int
    first: tuple[int, ...] = ()
    last: tuple[int, ...] = ()

    def distance(self, texts: Tensor) -> Tensor:
        """‖p − q‖² with q the shares of tokens in ``texts``."""
        found = texts.flatten().bincount(minlength=int(self.tokens[-1]) + 1)[self.tokens]
        return (self.shares - found / found.sum().clamp_min(1)).square().sum()


def frequencies(texts: Tensor, vocabulary: int, fewest: int) -> Frequencies:
    """Count tokens and pairs, each text with weight 1. Those in fewer than ``fewest`` texts are left out: they could
    identify somebody."""
    texts = texts.gather(1, (texts == 0).byte().argsort(dim=1, stable=True))  # padding goes to the end
    texts = texts[texts[:, 0] != 0]
    first, last = _frame(texts, fewest)
    body = (texts != 0) & ~torch.isin(texts, torch.tensor([*first, *last], dtype=torch.int64))
    rows = torch.arange(len(texts))[:, None].expand_as(texts)
    weights = (1 / body.sum(dim=1).clamp_min(1))[:, None].expand_as(texts)
    tokens, shares = _frequent(texts[body], rows[body], weights[body], fewest)
    before = torch.cat([torch.zeros_like(texts[:, :1]), texts[:, :-1] * body[:, :-1]], dim=1)
    codes = (before * vocabulary + texts)[body]
    codes, follow = _frequent(codes, rows[body], torch.ones(len(codes)), fewest)
    ends = torch.stack([codes // vocabulary, codes % vocabulary], dim=1)
    known = torch.isin(ends[:, 1], tokens) & (torch.isin(ends[:, 0], tokens) | (ends[:, 0] == 0))
    ends, follow = ends[known], follow[known]
    pairs = torch.searchsorted(tokens, ends)
    pairs[ends[:, 0] == 0, 0] = -1
    often = before[body].bincount(minlength=vocabulary)
    length = max(1, round(int(body.sum()) / max(len(texts), 1)))
    return Frequencies(tokens, shares / shares.sum(), pairs, follow / often[ends[:, 0]], length, first, last)


@dataclass(frozen=True)
class Statistics:
    """All that is used of a client's private texts.

    Attributes:
        counts: texts of each class, C.
        classes: of each class, what its texts have in common.
        private_runs: hashes of runs of `LONGEST_RUN` + 1 tokens in any text (`token_runs.runs`); none is written.
    """

    counts: Tensor
    classes: tuple[Frequencies, ...]
    private_runs: Tensor

    def usable(self, smallest: int) -> Tensor:
        """Which classes have enough texts, and tokens that may be sent."""
        return (self.counts >= smallest) & torch.tensor([len(each.tokens) > 0 for each in self.classes])


def private_statistics(private: Samples, classes: int, vocabulary: int, fewest: int) -> Statistics:
    texts = private.inputs[:]
    found = tuple(frequencies(texts[private.labels == c], vocabulary, fewest) for c in range(classes))
    return Statistics(private.labels.bincount(minlength=classes), found, runs(texts, LONGEST_RUN + 1))


def write_texts(
    found: Statistics, owned: Tensor, count: int, width: int, draw: torch.Generator
) -> tuple[Tensor, Tensor]:
    """``count`` texts of each owned class, C×count×width, and Σ_c ‖p_c − q_c‖² of their tokens; other classes are 0."""
    made = torch.zeros(len(owned), count, width, dtype=torch.int64)
    distance = torch.zeros(())
    for c in owned.nonzero().flatten().tolist():
        made[c] = write(found.classes[c], count, width, draw, found.private_runs)
        distance += found.classes[c].distance(made[c])
    return made, distance


def _frequent(values: Tensor, rows: Tensor, weights: Tensor, fewest: int) -> tuple[Tensor, Tensor]:
    """The values that at least ``fewest`` rows have, ascending, and the sums of their weights."""
    found, position = values.unique(return_inverse=True)
    in_rows = (rows * len(found) + position).unique() % max(len(found), 1)
    total = torch.zeros(len(found), dtype=torch.float32).index_add_(0, position, weights)
    kept = in_rows.bincount(minlength=len(found)) >= fewest
    return found[kept], total[kept]


def _frame(texts: Tensor, fewest: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The token that all texts begin with and have once, and the one that all texts end with that were not cut."""
    lengths = (texts != 0).sum(dim=1)
    whole = lengths < texts.shape[1]
    ends = texts[:, 0], texts[whole].gather(1, lengths[whole, None] - 1).flatten()
    first, last = (tuple(end[:1].tolist()) if _once_each(end, texts, fewest) else () for end in ends)
    return first, last


def _once_each(ends: Tensor, texts: Tensor, fewest: int) -> bool:
    return len(ends) >= fewest and bool((ends == ends[0]).all()) and int((texts == ends[0]).sum()) == len(ends)


def write(wanted: Frequencies, count: int, width: int, draw: torch.Generator, private_runs: Tensor) -> Tensor:
    """``count`` texts, count×width token ids, padded with 0.

    Args:
        draw: sets how far behind each token is at the start. Another draw gives other texts.
        private_runs: hashes of runs that are not written.
    """
    writer = _Writer(wanted, draw, private_runs)
    texts = torch.zeros(count, width, dtype=torch.int64)
    for row in range(count):
        ids = writer.text(width)
        texts[row, : len(ids)] = torch.tensor(ids)
    return texts


class _Writer:
    """Counts how far every token and every pair is behind its frequency; those that are written step back by 1."""

    def __init__(self, wanted: Frequencies, draw: torch.Generator, private_runs: Tensor) -> None:
        self.wanted, self.private_runs = wanted, private_runs
        self.behind = torch.rand(len(wanted.tokens), generator=draw) - 1
        self.pair_behind = torch.rand(len(wanted.pairs), generator=draw)
        firsts = wanted.pairs[:, 0].contiguous()
        self.bounds = torch.searchsorted(firsts, torch.arange(-1, len(wanted.tokens) + 1)).tolist()

    def text(self, width: int) -> list[int]:
        wanted, ids, previous = self.wanted, list(self.wanted.first), -1
        end = min(len(ids) + wanted.length, width - len(wanted.last))
        while len(ids) < end:
            self.behind += wanted.shares
            row = slice(self.bounds[previous + 1], self.bounds[previous + 2])
            seconds = wanted.pairs[row, 1]
            self.pair_behind[row] += wanted.follow[row]
            previous = self._best(self.behind.index_add(0, seconds, self.pair_behind[row]), ids)
            if previous < 0:
                break
            self.behind[previous] -= 1
            self.pair_behind[row] -= (seconds == previous).float()
            ids.append(int(wanted.tokens[previous]))
        while wanted.last and self._is_private([*ids, *wanted.last]):
            ids.pop()
        return [*ids, *wanted.last]

    def _best(self, score: Tensor, ids: Sequence[int]) -> int:
        """The position of the best token that does not complete a private run; −1: there is none."""
        while score[best := int(score.argmax())] > -torch.inf:
            if not self._is_private([*ids, int(self.wanted.tokens[best])]):
                return best
            score[best] = -torch.inf
        return -1

    def _is_private(self, ids: Sequence[int]) -> bool:
        """Whether the last tokens are a run of a private text."""
        run = runs(torch.tensor([ids[-LONGEST_RUN - 1 :]]), LONGEST_RUN + 1)
        place = int(torch.searchsorted(self.private_runs, run)) if len(run) else len(self.private_runs)
        return place < len(self.private_runs) and bool(self.private_runs[place] == run)


def find_text_fault(texts: Tensor, vocabulary: int) -> str:
    """Why received token ids, M×length, cannot be used; empty where they can."""
    if not texts.numel():
        return ""
    if int(texts.amin()) < 0 or int(texts.amax()) >= vocabulary:
        return f"a token id outside the vocabulary of {vocabulary}"
    padding = texts == 0
    if bool((padding[:, :-1] & ~padding[:, 1:]).any()):
        return "padding (0) before a token"
    return "a text without tokens" if bool(padding[:, 0].any()) else ""
