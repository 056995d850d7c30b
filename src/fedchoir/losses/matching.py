"""Distances between the class means of embeddings (distribution matching)."""

import torch
from torch import Tensor


def class_means(h: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The mean embedding of each class, C×d; zeros for a class without samples.

    Args:
        h: embeddings, B×d.
        labels: int64, B.

    >>> class_means(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 1]), 3)
    tensor([[2.],
            [5.],
            [0.]])
    """
    sums = torch.zeros(classes, h.shape[1], dtype=h.dtype, device=h.device).index_add(0, labels, h)
    counts = torch.zeros(classes, dtype=h.dtype, device=h.device).index_add(0, labels, torch.ones_like(h[:, 0]))
    return sums / counts.clamp_min(1).unsqueeze(1)


def mean_matching(synthetic: Tensor, private: Tensor, owned: Tensor) -> Tensor:
    """Zhao and Bilen, eq. 5: Σ_c ‖ private mean of class c − synthetic mean of class c ‖², over the classes owned.

    Args:
        synthetic: class means, C×d.
        private: class means, C×d.
        owned: bool, C.

    >>> means = torch.tensor([[1.0, 2.0], [0.0, 0.0]])
    >>> mean_matching(means + 1, means, torch.tensor([True, False]))
    tensor(2.)
    """
    return ((synthetic - private).square().sum(dim=1) * owned).sum()
