"""FCCM and FedDecorr against loops over samples and classes, and for their invariances."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedchoir import losses


def reference_correlation(z, z_mean, ddof=0):
    b, c = z.shape
    m = np.zeros((c, c))
    for u in range(c):
        for v in range(c):
            x, y = z[:, u] - z[:, u].mean(), z_mean[:, v] - z_mean[:, v].mean()
            total = sum(x[i] * y[i] for i in range(b))
            m[u, v] = total / b / (x.std(ddof=ddof) * y.std(ddof=ddof))
    return m


def reference_fccm(m, weight):
    c = len(m)
    return sum((1 - m[u, v]) ** 2 if u == v else weight * (1 + m[u, v]) ** 2 for u in range(c) for v in range(c))


def reference_decorrelation(h):
    d = h.shape[1]
    pairs = [(u, v) for u in range(d) for v in range(d) if u != v]
    return np.mean([np.corrcoef(h[:, u], h[:, v])[0, 1] ** 2 for u, v in pairs])


def logits(seed, b=12, c=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, b, c, generator=generator, dtype=torch.float64).unbind()


@pytest.mark.parametrize(("standardise", "ddof"), [("biased", 0), ("unbiased", 1)])
def test_cross_correlation_and_fccm_match_the_loops(standardise, ddof):
    z, z_mean = logits(0)
    expected = reference_correlation(z.numpy(), z_mean.numpy(), ddof)
    np.testing.assert_allclose(losses.cross_correlation(z, z_mean, standardise).numpy(), expected, rtol=1e-10)
    for weight in (0.0051, 0.3):
        loss = losses.fccm(z, z_mean, weight, standardise)
        assert loss.item() == pytest.approx(reference_fccm(expected, weight), rel=1e-10)


def test_the_default_weight_is_the_papers():
    z, z_mean = logits(1)
    assert losses.fccm(z, z_mean).item() == losses.fccm(z, z_mean, off_diagonal=0.0051).item()


@given(seed=st.integers(0, 10_000), scale=st.floats(0.01, 100), shift=st.floats(-50, 50))
@settings(max_examples=25, deadline=None)
def test_fccm_ignores_batch_order_and_each_columns_scale_and_shift(seed, scale, shift):
    z, z_mean = logits(seed)
    loss = losses.fccm(z, z_mean)
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(losses.fccm(z[order], z_mean[order]), loss)
    scales = torch.linspace(scale, 2 * scale, z.shape[1], dtype=z.dtype)
    shifts = torch.linspace(-shift, shift, z.shape[1], dtype=z.dtype)
    torch.testing.assert_close(losses.fccm(z * scales + shifts, z_mean), loss)
    torch.testing.assert_close(losses.fccm(z, z_mean * scales + shifts), loss)


@given(seed=st.integers(0, 10_000), b=st.integers(1, 9), c=st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_correlations_are_bounded(seed, b, c):
    z, z_mean = logits(seed, b, c)
    assert losses.cross_correlation(z, z_mean).abs().max() <= 1 + 1e-9


@pytest.mark.parametrize("value", [0.0, 0.1, -1e4])
def test_a_constant_column_gives_zero_and_finite_gradients(value):
    z, z_mean = (t.float() for t in logits(2, b=257))
    z[:, 1] = value
    z_mean[:, 3] = value
    z.requires_grad_()
    m = losses.cross_correlation(z, z_mean)
    assert (m[1] == 0).all()
    assert (m[:, 3] == 0).all()
    losses.fccm(z, z_mean).backward()
    assert z.grad is not None
    assert z.grad.isfinite().all()


def test_the_released_codes_standardisation_has_no_floor():
    z, z_mean = logits(3)
    z[:, 0] = 1.0
    assert losses.cross_correlation(z, z_mean, "unbiased")[0].isnan().all()


def test_an_unknown_standardisation_is_refused_in_one_line():
    with pytest.raises(ValueError, match=r"^standardise is 'none'; choose one of: biased, unbiased$"):
        losses.fccm(*logits(0), standardise="none")


def test_decorrelation_matches_the_loops():
    h, _ = logits(4)
    assert losses.decorrelation(h).item() == pytest.approx(reference_decorrelation(h.numpy()), rel=1e-10)


@pytest.mark.parametrize(("b", "d"), [(12, 5), (64, 3)])
def test_the_released_scale_of_decorrelation(b, d):
    """Mean square of the off-diagonal of ĥᵀ ĥ, ĥ with the unbiased std, divided by the batch's size; 62 at 64."""
    h = np.random.default_rng(b).normal(size=(b, d))
    standard = (h - h.mean(axis=0)) / np.sqrt(h.var(axis=0, ddof=1) + 1e-8)
    products = standard.T @ standard
    expected = np.mean(products[~np.eye(d, dtype=bool)] ** 2) / b
    official = losses.decorrelation(torch.from_numpy(h), "official").item()
    assert official == pytest.approx(expected, rel=1e-6)
    ratio = official / losses.decorrelation(torch.from_numpy(h)).item()
    assert ratio == pytest.approx({12: 11**2 / 12, 64: 62.015625}[b], rel=1e-10)


def test_an_unknown_scale_is_refused():
    with pytest.raises(ValueError, match=r"^scale is 'code'; choose one of: paper, official$"):
        losses.decorrelation(logits(0)[0], "code")


def test_decorrelation_is_zero_for_uncorrelated_and_one_for_copied_features():
    hadamard = torch.tensor([[1.0, 1, 1], [-1, 1, -1], [1, -1, -1], [-1, -1, 1]])
    assert losses.decorrelation(hadamard + 7).item() == pytest.approx(0, abs=1e-7)
    copies = torch.arange(4.0).unsqueeze(1) * torch.tensor([1.0, -2.0, 3.0])
    assert losses.decorrelation(copies).item() == pytest.approx(1)
    assert losses.decorrelation(copies[:, :1]).item() == 0


def test_decorrelation_survives_a_dead_feature():
    h = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    h[:, 2] = 0
    h.requires_grad_()
    losses.decorrelation(h).backward()
    assert h.grad is not None
    assert h.grad.isfinite().all()
