"""Condensation of texts under differential privacy: one noised release of how often each class has every token.

Everything after the release is computed from it and costs no further privacy. Pairs of tokens, lengths and runs of the
private texts are not used: they would need noise of their own.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedchoir.condensation.private_release import CHUNK, COUNT_SHARE, ROUNDING, Noise
from fedchoir.condensation.text import Frequencies, Statistics
from fedchoir.data.samples import Samples

CERTAIN = 3.0  # standard deviations of the noise; a token below is taken for one that no text has


def noised_statistics(private: Samples, classes: int, vocabulary: int, std: float, noise: Noise) -> Statistics:
    """Release counts of texts and sums of tokens of each class with Gaussian noise of standard deviation ``std``."""
    counts, sums = exact_token_sums(private, classes, vocabulary)
    counts = (counts + noise(counts.shape).double()) / _factor(COUNT_SHARE)
    sums = sums + noise(sums.shape).double()
    width = private.inputs.shape[1]
    return Statistics(counts, tuple(_frequencies(row, std, width) for row in sums), torch.zeros(0, dtype=torch.int64))


def exact_token_sums(private: Samples, classes: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """What the noise is added to: C and C×V.

    A text x of class c adds to row c the vector (√a, √(1−a) b(x)), with b(x) how often it has each token, scaled to
    length 1. Its norm is at most 1 and no other row depends on x, so adding or removing one text changes everything
    together by at most 1.
    """
    counts = _factor(COUNT_SHARE) * private.labels.bincount(minlength=classes).double()
    sums = torch.zeros(classes, vocabulary, dtype=torch.float64)
    for start in range(0, len(private), CHUNK):
        texts, labels = private.inputs[start : start + CHUNK], private.labels[start : start + CHUNK]
        bags = torch.zeros(len(texts), vocabulary).scatter_add_(1, texts, (texts != 0).float())
        sums.index_add_(0, labels, F.normalize(bags, dim=1).double() * _factor(1 - COUNT_SHARE))
    return counts, sums


def _factor(share: float) -> float:
    return float(share**0.5 * (1 - ROUNDING))


def _frequencies(sums: Tensor, std: float, width: int) -> Frequencies:
    sums[0] = 0  # padding
    tokens = (sums > CERTAIN * std).nonzero().flatten()
    shares = (sums[tokens] / sums[tokens].sum()).float()
    none = torch.zeros(0, 2, dtype=torch.int64)
    return Frequencies(tokens, shares, none, torch.zeros(0), width)
