"""FBCL's Gaussians, FIA and FBM against loops over positions and pairs."""

import numpy as np
import pytest
import torch

from fedchoir import losses


def reference_gaussian(feature_map):
    b, d, height, width = feature_map.shape
    m = height * width
    mu, delta = np.zeros((b, d)), np.zeros((b, d, d))
    for i in range(b):
        vectors = [feature_map[i, :, y, x] for y in range(height) for x in range(width)]
        mu[i] = sum(vectors) / m
        for h in vectors:
            delta[i] += np.outer(h - mu[i], h - mu[i]) / m
    return mu, delta


def maps(seed, b=5, d=4, height=3, width=2):
    return torch.randn(b, d, height, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_gaussian_matches_the_loops():
    feature_map = maps(0)
    mu, delta = losses.gaussian(feature_map)
    expected_mu, expected_delta = reference_gaussian(feature_map.numpy())
    np.testing.assert_allclose(mu.numpy(), expected_mu, atol=1e-12)
    np.testing.assert_allclose(delta.numpy(), expected_delta, atol=1e-12)


def test_the_diagonal_form_gives_the_same_variances():
    feature_map = maps(1)
    mu, delta = losses.gaussian(feature_map)
    mu_diagonal, variances = losses.gaussian(feature_map, diagonal=True)
    torch.testing.assert_close(mu_diagonal, mu)
    torch.testing.assert_close(variances, delta.diagonal(dim1=1, dim2=2))


def test_gaussian_takes_flat_positions_and_ignores_their_order():
    feature_map = maps(2)
    flat = feature_map.flatten(2)
    for a, b in zip(losses.gaussian(feature_map), losses.gaussian(flat.flip(2)), strict=True):
        torch.testing.assert_close(a, b)


def test_one_position_has_no_spread():
    _, delta = losses.gaussian(maps(3, height=1, width=1))
    assert (delta == 0).all()


@pytest.mark.parametrize("diagonal", [False, True])
def test_fia_matches_the_loops_and_is_zero_at_equality(diagonal):
    own, other = (losses.gaussian(maps(seed), diagonal) for seed in (4, 5))
    expected = 0.0
    for i in range(5):
        for a, b in zip(own, other, strict=True):
            expected += sum((x - y) ** 2 for x, y in zip(a[i].flatten(), b[i].flatten(), strict=True)).item() / 5
    assert losses.fia(*own, *other).item() == pytest.approx(expected, rel=1e-10)
    assert losses.fia(*own, *own).item() == 0


@pytest.mark.parametrize("diagonal", [False, True])
def test_fia_as_a_mean_over_entries(diagonal):
    own, other = (losses.gaussian(maps(seed), diagonal) for seed in (4, 5))
    expected = sum(np.mean((a.numpy() - b.numpy()) ** 2) for a, b in zip(own, other, strict=True))
    assert losses.fia(*own, *other, "mean").item() == pytest.approx(expected, rel=1e-10)
    with pytest.raises(ValueError, match=r"^reduction is 'max'; choose one of: sum, mean$"):
        losses.fia(*own, *other, "max")


def test_fia_refuses_variances_against_covariances_in_one_line():
    mu, delta = losses.gaussian(maps(6, b=4))
    _, variances = losses.gaussian(maps(6, b=4), diagonal=True)
    with pytest.raises(ValueError, match=r"^fia: .*\(4, 4, 4\).*\(4, 4\).*$"):
        losses.fia(mu, delta, mu, variances)


def test_fbm_matches_the_loops():
    mu, _ = losses.gaussian(maps(7))
    x = mu.numpy()
    pairs = [(u, v) for u in range(5) for v in range(5) if u != v]
    values = [abs(x[u] @ x[v]) / (np.linalg.norm(x[u]) * np.linalg.norm(x[v])) for u, v in pairs]
    assert losses.fbm(mu).item() == pytest.approx(np.mean(values), rel=1e-10)


def test_fbm_lies_between_orthogonal_and_parallel():
    orthogonal = torch.diag(torch.tensor([1.0, -2.0, 3.0, 0.5]))
    assert losses.fbm(orthogonal).item() == 0
    parallel = torch.tensor([[1.0], [-2.0], [3.0]]) * torch.tensor([1.0, 2.0])
    assert losses.fbm(parallel).item() == pytest.approx(1)
    assert losses.fbm(parallel[:1]).item() == 0
