"""KuLSIF against a minimisation of its objective, and on two known densities."""

from __future__ import annotations

import numpy as np
import torch

from fedchoir.methods.density_ratio import density_ratio, fit_density_ratio, median_distance


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_estimate_minimises_its_objective() -> None:
    """½ mean_q r² − mean_p r + λ/2 ‖r‖² over all sums of kernels at both sample sets, by its normal equations."""
    known, auxiliary, width = draw(0, 5, 2), draw(1, 7, 2), torch.tensor(1.3, dtype=torch.float64)
    points = np.concatenate([auxiliary.numpy(), known.numpy()])
    kernel = np.array([[np.exp(-((a - b) ** 2).sum() / (2 * 1.3**2)) for b in points] for a in points])
    q, p, lam = kernel[:7], kernel[7:], 7**-0.5
    coefficients = np.linalg.lstsq(q.T @ q / 7 + lam * kernel, p.mean(axis=0), rcond=None)[0]
    found = density_ratio(fit_density_ratio(known, auxiliary, width), torch.from_numpy(points))
    np.testing.assert_allclose(found, kernel @ coefficients, rtol=1e-6, atol=1e-9)


def test_familiar_points_have_larger_ratios() -> None:
    known, uniform = draw(2, 200, 2), 8 * torch.rand(200, 2, generator=torch.Generator().manual_seed(3)).double() - 4
    fitted = fit_density_ratio(known, uniform, torch.tensor(1.0, dtype=torch.float64))
    points = torch.tensor([[0.0, 0.0], [1.5, 1.5], [3.5, 3.5], [30.0, 30.0]], dtype=torch.float64)
    ratios = density_ratio(fitted, points)
    assert ratios[0] > ratios[1] > ratios[2].clamp_min(0)
    assert ratios[3].abs() < 1e-6


def test_the_kernel_is_as_wide_as_the_median_distance() -> None:
    assert median_distance(torch.tensor([[0.0], [1.0], [3.0]])).item() == 2
    assert median_distance(torch.zeros(4, 3)).item() == 1
    assert median_distance(torch.zeros(1, 3)).item() == 1
