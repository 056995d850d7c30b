"""FedProto's distance, FedTGP's margin and FPL's clusters against plain loops."""

import math

import numpy as np
import pytest
import torch

from fedchoir import losses


def tensors(seed, *shapes):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


LABELS = torch.tensor([0, 2, 1, 2, 0, 3])


@pytest.mark.parametrize("distance", ["mse", "squared", "euclidean"])
def test_prototype_distance_matches_the_loop(distance):
    h, u = tensors(0, (6, 5), (4, 5))
    each = []
    for row, y in zip(h.numpy(), LABELS, strict=True):
        squares = sum((a - b) ** 2 for a, b in zip(row, u[y].numpy(), strict=True))
        each.append({"mse": squares / 5, "squared": squares, "euclidean": math.sqrt(squares)}[distance])
    assert losses.prototype_distance(h, LABELS, u, distance=distance).item() == pytest.approx(np.mean(each))
    present = torch.tensor([True, False, True, False])
    kept = np.mean([v for v, y in zip(each, LABELS, strict=True) if present[y]]) * 4 / 6
    assert losses.prototype_distance(h, LABELS, u, present, distance).item() == pytest.approx(kept)


def test_a_feature_at_its_prototype_has_distance_0_and_no_gradient():
    (u,) = tensors(1, (4, 5))
    for distance in ("mse", "squared", "euclidean"):
        h = u[LABELS].clone().requires_grad_()
        value = losses.prototype_distance(h, LABELS, u, distance=distance)
        value.backward()
        assert value.item() == 0
        assert torch.equal(h.grad, torch.zeros_like(h))


def test_an_unknown_distance_is_refused():
    h, u = tensors(0, (6, 5), (4, 5))
    with pytest.raises(ValueError, match="distance is 'l1'; choose one of: mse, squared, euclidean"):
        losses.prototype_distance(h, LABELS, u, distance="l1")


@pytest.mark.parametrize("margin", [0.0, 2.5])
def test_margin_contrast_matches_the_loop(margin):
    h, u = tensors(2, (6, 5), (4, 5))
    total = 0.0
    for row, y in zip(h.numpy(), LABELS.tolist(), strict=True):
        scores = [math.exp(-np.linalg.norm(row - p) - (margin if k == y else 0)) for k, p in enumerate(u.numpy())]
        total -= math.log(scores[y] / sum(scores))
    assert losses.margin_contrast(u, h, LABELS, margin).item() == pytest.approx(total / 6)


def test_a_larger_margin_costs_more():
    h, u = tensors(3, (6, 5), (4, 5))
    found = [losses.margin_contrast(u, h, LABELS, margin).item() for margin in (0.0, 1.0, 10.0)]
    assert found == sorted(found)
    assert found[0] < found[-1]


@pytest.mark.parametrize("temperature", [0.02, 0.5])
def test_cluster_contrast_matches_the_loop(temperature):
    h, clusters = tensors(4, (6, 5), (7, 5))
    classes = torch.tensor([0, 0, 1, 2, 2, 2, -1])  # class 3 has no cluster, and the last row is padding
    total = 0.0
    for row, y in zip(h.numpy(), LABELS.tolist(), strict=True):
        cosine = [np.dot(row, c) / np.linalg.norm(row) / np.linalg.norm(c) for c in clusters[:6].numpy()]
        scores = np.exp(np.array(cosine) / temperature)
        own = scores[classes[:6].numpy() == y].sum()
        total -= math.log(own / scores.sum()) if y != 3 else 0.0
    found = losses.cluster_contrast(h, LABELS, clusters, classes, temperature)
    assert found.item() == pytest.approx(total / 6, rel=1e-8)


def test_with_one_cluster_a_class_it_is_the_contrast_to_prototypes():
    h, u = tensors(5, (6, 5), (4, 5))
    found = losses.cluster_contrast(h, LABELS, u, torch.arange(4), 0.1)
    torch.testing.assert_close(found, losses.prototype_contrast(h, LABELS, u, 0.1))


def test_without_clusters_there_is_no_contrast_and_no_gradient():
    (h,) = tensors(6, (6, 5))
    h.requires_grad_()
    value = losses.cluster_contrast(h, LABELS, torch.zeros(3, 5).double(), torch.full((3,), -1), 0.02)
    value.backward()
    assert value.item() == 0
    assert torch.equal(h.grad, torch.zeros_like(h))
