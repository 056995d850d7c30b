"""Weights of classes in the cross-entropy, from a client's own class frequencies. They are not sent."""

import torch
from torch import Tensor


def balanced_weights(counts: Tensor) -> Tensor:
    """N / (C n_c) for a class with n_c of N samples, where C classes have samples (King and Zeng, 2001; as in
    scikit-learn). A class without samples has weight 1, which no sample uses.

    >>> balanced_weights(torch.tensor([6, 2, 0]))
    tensor([0.6667, 2.0000, 1.0000])
    """
    present = counts > 0
    weights = counts.sum() / (present.sum() * counts.clamp_min(1))
    return torch.where(present, weights, 1.0).float()
