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


def decaying(seed, m, n, decades, dtype=torch.float32):
    """Features whose singular values fall over so many powers of ten."""
    spectrum = torch.logspace(0, -decades, n, dtype=torch.float64)
    return ((normal(seed, m, n) * spectrum) @ normal(seed + 1, n, n) / n**0.5).to(dtype)


@given(seed=seeds, size=sizes)
@settings(max_examples=30, deadline=None)
def test_cholesky_gives_the_r_of_qr(seed, size):
    m, n = size
    z = normal(seed, m, n) + 2 * torch.eye(m, n, dtype=torch.float64)
    by_qr, by_cholesky = (losses.feature_correlation(z, solver) for solver in ("factors", "products"))
    torch.testing.assert_close(by_cholesky, by_qr, rtol=1e-6, atol=1e-6)


@given(seed=seeds, size=sizes)
@settings(max_examples=30, deadline=None)
def test_products_alone_find_the_basis_of_the_svd(seed, size):
    m, n = size
    z, r = normal(seed, m, n), losses.feature_correlation(normal(seed + 1, m, n))
    q = losses.procrustes(z, r, "products")
    torch.testing.assert_close(q.T @ q, torch.eye(n, dtype=torch.float64), atol=1e-6, rtol=0)
    gaps = [losses.understanding_gaps(z, r[None], solver) for solver in ("factors", "products")]
    torch.testing.assert_close(gaps[1], gaps[0], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("decades", [0, 3, 5])
def test_both_solvers_agree_at_the_size_of_the_paper_in_float32(decades):
    z, others = decaying(0, 500, 256, decades), torch.stack([decaying(s, 256, 256, 2) for s in (2, 4)])
    rs = torch.stack([losses.feature_correlation(o) for o in others])
    scale = torch.linalg.norm(z)
    by_qr, by_cholesky = (losses.feature_correlation(z, solver) for solver in ("factors", "products"))
    assert torch.linalg.norm(by_qr - by_cholesky) < 1e-4 * scale
    assert by_cholesky.trace() == pytest.approx(by_qr.trace().item(), rel=1e-4)
    slow, fast = (losses.understanding_gaps(z, rs, solver) for solver in ("factors", "products"))
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=0)


@pytest.mark.parametrize("z", [torch.zeros(12, 5), torch.ones(12, 5), decaying(6, 12, 5, 30)])
def test_products_survive_features_without_full_rank(z):
    z = z.clone().requires_grad_()
    r = losses.feature_correlation(normal(8, 12, 5).float())
    own = losses.feature_correlation(z, "products")
    assert own.isfinite().all()
    torch.testing.assert_close(own.T @ own, (z.T @ z).detach(), atol=1e-5, rtol=1e-5)
    gap = losses.understanding_gaps(z, torch.stack([r, torch.zeros(5, 5), own]), "products").sum()
    (gradient,) = torch.autograd.grad(gap, z)
    assert gap.isfinite()
    assert gradient.isfinite().all()


def test_an_unknown_solver_is_refused_in_one_line():
    with pytest.raises(ValueError, match=r"^solver is 'svd'; choose one of: auto, factors, products$"):
        losses.procrustes(torch.ones(4, 2), torch.eye(2), "svd")
