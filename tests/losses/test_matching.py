"""Class means and their distance, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedchoir import losses


def test_class_means_are_those_of_numpy() -> None:
    draw = torch.Generator().manual_seed(0)
    h, labels = torch.randn(30, 5, generator=draw), torch.randint(0, 3, (30,), generator=draw)
    means = losses.class_means(h, labels, 4)
    for c in range(3):
        np.testing.assert_allclose(means[c].numpy(), h.numpy()[labels.numpy() == c].mean(axis=0), rtol=1e-5, atol=1e-6)
    assert means[3].tolist() == [0.0] * 5


def test_the_distance_counts_owned_classes_alone() -> None:
    one, two = np.arange(12.0).reshape(4, 3), np.ones((4, 3))
    owned = np.array([True, False, True, False])
    found = losses.mean_matching(torch.from_numpy(one), torch.from_numpy(two), torch.from_numpy(owned))
    assert float(found) == pytest.approx(np.square((one - two)[owned]).sum())


def test_gradients() -> None:
    h = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    labels, target = torch.tensor([0, 0, 1, 1, 1, 0]), torch.ones(3, 3, dtype=torch.float64)
    owned = torch.tensor([True, True, False])
    assert torch.autograd.gradcheck(
        lambda x: losses.mean_matching(losses.class_means(x, labels, 3), target, owned), (h,)
    )
