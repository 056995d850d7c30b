"""KuLSIF: the ratio of two densities by kernel least squares (Kanamori, Suzuki and Sugiyama, Machine Learning 2012)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def gaussian_kernel(x: Tensor, y: Tensor, width: Tensor) -> Tensor:
    """exp(−‖x − y‖² / 2σ²) of every row of x with every row of y."""
    return torch.exp(-torch.cdist(x, y).square() / (2 * width.square()))


def median_distance(x: Tensor) -> Tensor:
    """The median distance between two different rows: a usual width of the kernel. 1 where there is none."""
    distances = torch.pdist(x)
    median = distances.median() if len(distances) else x.new_ones(())
    return torch.where(median > 0, median, torch.ones_like(median))


def fit_density_ratio(known: Tensor, auxiliary: Tensor, width: Tensor) -> dict[str, Tensor]:
    """What `density_ratio` needs to estimate p/q from m samples of p and n samples of q.

    The estimate r(x) = Σ_j α_j k(x, a_j) + Σ_i k(x, x_i) / (mλ) minimises ½ mean_q r² − mean_p r + λ/2 ‖r‖², with
    λ = n^(−½) and α = −(K/n + λI)⁻¹ k̄ / (nλ), where K is the kernel matrix of the samples a of q and k̄ their mean
    kernel values with the samples x of p.
    """
    n = len(auxiliary)
    lam = n**-0.5
    among = gaussian_kernel(auxiliary, auxiliary, width)
    to_known = gaussian_kernel(auxiliary, known, width).mean(dim=1)
    regularised = among / n + lam * torch.eye(n, device=among.device, dtype=among.dtype)
    alpha = -torch.linalg.solve(regularised, to_known) / (n * lam)
    return {"known": known, "auxiliary": auxiliary, "alpha": alpha, "width": width}


def density_ratio(fitted: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """The estimate r(x) for each row of x.

    >>> near, far = torch.zeros(1, 2), torch.full((1, 2), 9.0)
    >>> fitted = fit_density_ratio(torch.zeros(4, 2), torch.tensor([[5.0, 5.0], [-5.0, 5.0]]), torch.tensor(1.0))
    >>> bool(density_ratio(fitted, near) > density_ratio(fitted, far))
    True
    """
    width = fitted["width"]
    to_auxiliary = gaussian_kernel(x, fitted["auxiliary"], width) @ fitted["alpha"]
    to_known = gaussian_kernel(x, fitted["known"], width).mean(dim=1)
    return to_auxiliary + to_known * len(fitted["auxiliary"]) ** 0.5  # 1/λ
