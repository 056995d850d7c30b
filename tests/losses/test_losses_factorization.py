"""FedFoA: QR made unique, Lemma 1, and a loss that survives features without full rank."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedchoir import losses

seeds = st.integers(0, 10_000)
sizes = st.tuples(st.integers(1, 6), st.integers(0, 7)).map(lambda s: (s[0] + s[1], s[0]))


def normal(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gram_schmidt_r(z):
    """R by orthogonalising one column after the other; its diagonal holds lengths, so it is positive."""
    n = z.shape[1]
    basis, r = [], np.zeros((n, n))
    for j in range(n):
        rest = z[:, j].copy()
        for i, q in enumerate(basis):
            r[i, j] = q @ rest
            rest -= r[i, j] * q
        r[j, j] = np.linalg.norm(rest)
        basis.append(rest / r[j, j])
    return r


def reference_procrustes(z, r):
    """Eq. 6 to the letter, with the n×m SVD."""
    u, _, v_t = np.linalg.svd(r @ z.T, full_matrices=False)
    return v_t.T @ u.T


def test_feature_correlation_matches_gram_schmidt():
    z = normal(0, 9, 4)
    r = losses.feature_correlation(z)
    np.testing.assert_allclose(r.numpy(), gram_schmidt_r(z.numpy()), atol=1e-12)
    torch.testing.assert_close(r.T @ r, z.T @ z)


@given(seed=seeds, size=sizes)
@settings(max_examples=30, deadline=None)
def test_r_is_the_same_for_every_rotation_of_the_batch(seed, size):
    m, n = size
    z = normal(seed, m, n) + 2 * torch.eye(m, n, dtype=torch.float64)
    rotation = torch.linalg.qr(normal(seed + 1, m, m)).Q
    r = losses.feature_correlation(z)
    assert (r.diagonal() >= 0).all()
    assert (r.tril(-1) == 0).all()
    torch.testing.assert_close(losses.feature_correlation(rotation @ z), r, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(losses.feature_correlation(-z), r, rtol=1e-6, atol=1e-6)


def test_a_zero_column_keeps_its_row_of_r():
    z = normal(1, 6, 3)
    z[:, 0] = 0
    r = losses.feature_correlation(z)
    assert r.isfinite().all()
    torch.testing.assert_close(r.T @ r, z.T @ z)


@given(seed=seeds, size=sizes)
@settings(max_examples=30, deadline=None)
def test_the_small_svd_gives_the_basis_of_the_large_one(seed, size):
    m, n = size
    z, r = normal(seed, m, n), normal(seed + 1, n, n)
    q = losses.procrustes(z, r)
    torch.testing.assert_close(q.T @ q, torch.eye(n, dtype=torch.float64))
    # The factor itself only where it is unique; the distance always.
    full = torch.from_numpy(reference_procrustes(z.numpy(), r.numpy()))
    torch.testing.assert_close(torch.linalg.norm(z - q @ r), torch.linalg.norm(z - full @ r))
    if torch.linalg.svdvals(r @ z.T).min() > 1e-3:
        torch.testing.assert_close(q, full, rtol=1e-6, atol=1e-6)


@given(seed=seeds, size=sizes, nearness=st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_lemma_1_no_orthonormal_basis_beats_q_star(seed, size, nearness):
    m, n = size
    z = normal(seed, m, n)
    r = losses.feature_correlation(normal(seed + 1, m, n))
    best = losses.procrustes(z, r)
    rival = torch.linalg.qr(nearness * best + (1 - nearness) * normal(seed + 2, m, n)).Q
    for q in (rival, -rival, rival.flip(1)):
        assert torch.linalg.norm(z - best @ r) <= torch.linalg.norm(z - q @ r) + 1e-9


def test_mutual_understanding_matches_the_reference_and_holds_the_basis_fixed():
    z, r = normal(2, 9, 4).requires_grad_(), losses.feature_correlation(normal(3, 9, 4))
    x = z.detach().numpy()
    gap = x - reference_procrustes(x, r.numpy()) @ r.numpy()
    distance = np.sqrt(sum(v**2 for v in gap.flatten()))
    loss = losses.mutual_understanding(z, r)
    loss.backward()
    assert loss.item() == pytest.approx(distance, rel=1e-10)
    np.testing.assert_allclose(z.grad.numpy(), gap / distance, atol=1e-10)


def test_several_correlations_at_once_add_up():
    z, rs = normal(4, 8, 3), normal(5, 4, 3, 3)
    together = losses.mutual_understanding(z, rs)
    torch.testing.assert_close(together, sum(losses.mutual_understanding(z, r) for r in rs))
    assert losses.procrustes(z, rs).shape == (4, 8, 3)


@given(seed=seeds)
@settings(max_examples=15, deadline=None)
def test_a_client_understands_itself(seed):
    z = normal(seed, 8, 4)
    assert losses.mutual_understanding(z, losses.feature_correlation(z)).item() == pytest.approx(0, abs=1e-10)


@pytest.mark.parametrize("noise", [0.0, 1e-30, 1e-7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_features_without_full_rank_give_no_nan(noise, dtype):
    collapsed = normal(6, 12, 1).to(dtype) * torch.ones(1, 5, dtype=dtype)
    z = (collapsed + noise * normal(7, 12, 5).to(dtype)).requires_grad_()
    r = losses.feature_correlation(normal(8, 12, 5).to(dtype))
    for other in (r, torch.zeros_like(r), losses.feature_correlation(z)):
        loss = losses.mutual_understanding(z, other)
        (gradient,) = torch.autograd.grad(loss, z)
        assert loss.isfinite()
        assert gradient.isfinite().all()


def test_zero_features_give_no_nan():
    z = torch.zeros(6, 3, requires_grad=True)
    loss = losses.mutual_understanding(z, torch.zeros(3, 3))
    loss.backward()
    assert loss.item() == 0
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("call", [losses.feature_correlation, lambda z: losses.mutual_understanding(z, torch.eye(4))])
def test_a_batch_smaller_than_the_width_is_refused_in_one_line(call):
    with pytest.raises(ValueError, match=r"^features have shape \(3, 4\); .*$"):
        call(torch.ones(3, 4))


def test_a_correlation_of_another_width_is_refused_in_one_line():
    with pytest.raises(ValueError, match=r"^correlation has shape \(3, 3\); features of width 2 need 2×2$"):
        losses.procrustes(torch.ones(4, 2), torch.eye(3))
