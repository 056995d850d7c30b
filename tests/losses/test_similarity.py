"""Instance similarities, FISL and FRR against loops, and for their properties."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedchoir import losses


def cosine(x, y):
    return float(np.dot(x, y) / (np.linalg.norm(x) * np.linalg.norm(y)))


def reference_similarity(h, temperature):
    b = len(h)
    return np.array([[cosine(h[u], h[v]) / temperature for v in range(b) if v != u] for u in range(b)])


def reference_kl_rows(target, own):
    total = 0.0
    for t, o in zip(target, own, strict=True):
        p = [math.exp(x - max(t)) for x in t]
        q = [math.exp(x - max(o)) for x in o]
        p, q = [x / sum(p) for x in p], [x / sum(q) for x in q]
        total += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)
    return total / len(target)


def features(seed, count=2, b=6, d=4):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, b, d, generator=generator, dtype=torch.float64).unbind()


@pytest.mark.parametrize("temperature", [0.02, 0.5])
def test_similarity_and_fisl_match_the_loops(temperature):
    h, other = features(0)
    s, s_mean = (losses.instance_similarity(x, temperature) for x in (h, other))
    assert s.shape == (6, 5)
    expected, expected_mean = (reference_similarity(x.numpy(), temperature) for x in (h, other))
    np.testing.assert_allclose(s.numpy(), expected, rtol=1e-10)
    loss = losses.fisl(s, s_mean).item()
    assert loss == pytest.approx(reference_kl_rows(expected_mean, expected), rel=1e-9)


def test_the_default_temperature_is_the_papers():
    (h,) = features(1, count=1)
    torch.testing.assert_close(losses.instance_similarity(h), losses.instance_similarity(h, temperature=0.02))


@given(seed=st.integers(0, 10_000), scale=st.floats(1e-3, 1e3))
@settings(max_examples=20, deadline=None)
def test_similarity_ignores_the_length_of_features(seed, scale):
    (h,) = features(seed, count=1)
    scales = torch.linspace(scale, 3 * scale, len(h), dtype=h.dtype).unsqueeze(1)
    torch.testing.assert_close(losses.instance_similarity(h * scales), losses.instance_similarity(h))


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_fisl_is_zero_at_equality_and_positive_elsewhere(seed):
    s, s_mean = (losses.instance_similarity(x, 0.5) for x in features(seed))
    assert losses.fisl(s, s).item() == 0
    assert losses.fisl(s, s_mean).item() > 0
    # A softmax does not see a constant added to a row.
    assert losses.fisl(s + 3, s).item() == pytest.approx(0, abs=1e-12)


def test_fisl_needs_no_common_width():
    narrow, wide = features(2, count=1, d=3)[0], features(3, count=1, d=9)[0]
    loss = losses.fisl(losses.instance_similarity(narrow), losses.instance_similarity(wide))
    assert loss.isfinite()


def test_fisl_stays_finite_at_the_papers_temperature_in_float32():
    h, other = (x.float() for x in features(4, b=64, d=2))
    h.requires_grad_()
    loss = losses.fisl(losses.instance_similarity(h), losses.instance_similarity(other))
    loss.backward()
    assert loss.isfinite()
    assert h.grad is not None
    assert h.grad.isfinite().all()


def test_frr_matches_the_loops_across_widths():
    h, h_old = features(5, count=1)[0], features(6, count=1, d=7)[0]
    x, y = h.numpy(), h_old.numpy()
    gaps = [(cosine(x[u], x[v]) - cosine(y[u], y[v])) ** 2 for u in range(6) for v in range(6)]
    assert losses.frr(h, h_old).item() == pytest.approx(np.mean(gaps), rel=1e-10)


def test_frr_is_zero_where_relations_are_kept():
    (h,) = features(7, count=1)
    rotation = torch.linalg.qr(features(8, count=1, b=4)[0]).Q
    assert losses.frr(2 * h @ rotation, h).item() == pytest.approx(0, abs=1e-12)
