"""Prototypes, the contrasts against them and feature mixing, against loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedchoir import losses


def cosine(x, y):
    return float(np.dot(x, y) / (np.linalg.norm(x) * np.linalg.norm(y)))


def reference_contrast(h, labels, prototypes, temperature, classes):
    """Mean over the samples whose class is in `classes`, with only those in the denominator."""
    samples = []
    for x, y in zip(h, labels, strict=True):
        if y in classes:
            scores = {k: math.exp(cosine(x, prototypes[k]) / temperature) for k in classes}
            samples.append(-math.log(scores[y] / sum(scores.values())))
    return np.mean(samples)


def batch(seed, b=9, d=4, c=5):
    generator = torch.Generator().manual_seed(seed)
    h = torch.randn(b, d, generator=generator, dtype=torch.float64)
    prototypes = torch.randn(c, d, generator=generator, dtype=torch.float64)
    return h, torch.randint(c, (b,), generator=generator), prototypes


def test_class_prototypes_match_the_loops_and_an_absent_class_is_zero():
    h, labels, _ = batch(0)
    labels[labels == 2] = 3
    prototypes, counts = losses.class_prototypes(h, labels, classes=5)
    for k in range(5):
        members = [h[i].numpy() for i in range(len(h)) if labels[i] == k]
        assert counts[k].item() == len(members)
        expected = np.mean(members, axis=0) if members else np.zeros(4)
        np.testing.assert_allclose(prototypes[k].numpy(), expected, atol=1e-12)


@given(seed=st.integers(0, 10_000), cut=st.integers(1, 8))
@settings(max_examples=20, deadline=None)
def test_prototypes_of_parts_join_to_those_of_the_whole(seed, cut):
    h, labels, _ = batch(seed)
    u_a, n_a = losses.class_prototypes(h[:cut], labels[:cut], 5)
    u_b, n_b = losses.class_prototypes(h[cut:], labels[cut:], 5)
    whole, counts = losses.class_prototypes(h, labels, 5)
    joined = (u_a * n_a[:, None] + u_b * n_b[:, None]) / (n_a + n_b).clamp_min(1)[:, None]
    torch.testing.assert_close(joined, whole)
    torch.testing.assert_close(n_a + n_b, counts)


def test_fusing_falls_back_to_the_global_prototype():
    _, _, u_g = batch(1)
    u_l = torch.zeros_like(u_g)
    counts = torch.tensor([1.0, 0, 2, 0, 3])
    fused = losses.fuse_prototypes(u_g, u_l, counts, weight=0.25)
    expected = torch.stack([0.25 * u_g[k] if counts[k] else u_g[k] for k in range(5)])
    torch.testing.assert_close(fused, expected)


@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_prototype_contrast_matches_the_loops(temperature):
    h, labels, prototypes = batch(2)
    expected = reference_contrast(h.numpy(), labels.tolist(), prototypes.numpy(), temperature, range(5))
    loss = losses.prototype_contrast(h, labels, prototypes, temperature).item()
    assert loss == pytest.approx(expected, rel=1e-10)


def test_a_class_nobody_has_is_left_out():
    h, labels, prototypes = batch(3)
    labels[0] = 1
    prototypes[1] = 0
    h.requires_grad_()
    present = torch.tensor([True, False, True, True, True])
    loss = losses.prototype_contrast(h, labels, prototypes, 0.5, present)
    loss.backward()
    numbers = h.detach().numpy(), labels.tolist(), prototypes.numpy()
    assert loss.item() == pytest.approx(reference_contrast(*numbers, 0.5, [0, 2, 3, 4]), rel=1e-10)
    assert h.grad.isfinite().all()
    assert (h.grad[0] == 0).all()


def test_no_known_class_at_all_costs_nothing():
    h, labels, prototypes = batch(4)
    nobody = torch.zeros(5, dtype=torch.bool)
    assert losses.prototype_contrast(h, labels, prototypes, 0.5, nobody).item() == 0


@pytest.mark.parametrize("extrapolation", [0.1, 0.5])
def test_apcl_matches_the_loops(extrapolation):
    h, labels, prototypes = batch(5)
    hybrid = [x + extrapolation * (x - prototypes[y].numpy()) for x, y in zip(h.numpy(), labels.tolist(), strict=True)]
    expected = reference_contrast(hybrid, labels.tolist(), prototypes.numpy(), 0.5, range(5))
    loss = losses.apcl(h, labels, prototypes, temperature=0.5, extrapolation=extrapolation).item()
    assert loss == pytest.approx(expected, rel=1e-10)


def test_apcl_without_extrapolation_is_the_plain_contrast():
    h, labels, prototypes = batch(6)
    plain = losses.prototype_contrast(h, labels, prototypes, 0.5)
    assert losses.apcl(h, labels, prototypes, 0.5, extrapolation=0.0).item() == plain.item()


def test_mfa_is_cross_entropy_against_the_mixed_label():
    logits = batch(7, d=5)[0]
    labels_a, labels_b = torch.arange(9) % 5, (torch.arange(9) + 2) % 5
    total = 0.0
    for z, a, b in zip(logits.tolist(), labels_a.tolist(), labels_b.tolist(), strict=True):
        log_p = [x - math.log(sum(math.exp(v) for v in z)) for x in z]
        total -= 0.3 * log_p[a] + 0.7 * log_p[b]
    assert losses.mfa(logits, labels_a, labels_b, weight=0.3).item() == pytest.approx(total / 9, rel=1e-10)


def test_mixed_features_interpolate():
    f_a, _, _ = batch(8)
    f_b = f_a.flip(0)
    np.testing.assert_allclose(
        losses.mixed_features(f_a, f_b, 0.3).numpy(), 0.3 * f_a.numpy() + 0.7 * f_b.numpy(), rtol=1e-12
    )
    torch.testing.assert_close(losses.mixed_features(f_a, f_b, 1.0), f_a)
