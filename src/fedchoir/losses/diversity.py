"""FedGen's diversity loss: different noise gives different generated features."""

import torch
from torch import Tensor


def feature_diversity(noise: Tensor, features: Tensor) -> Tensor:
    """Penalise generated features that are alike although their noise differs.

    FedGen (Zhu et al., ICML 2021), the diversity term of its released code, over all pairs of samples:

        L = exp(−mean_{ij} mean|f_i − f_j| · mean(ε_i − ε_j)²)

    The inner means are over the widths of features and noise.

    Args:
        noise: ε, B×n; detached.
        features: f, B×d.

    >>> noise, spread = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [4.0]])
    >>> feature_diversity(noise, torch.zeros(2, 1)).item(), round(feature_diversity(noise, spread).item(), 4)  # 1, e⁻²
    (1.0, 0.1353)
    """
    eps = noise.detach()
    noise_gap = torch.cdist(eps, eps, compute_mode="donot_use_mm_for_euclid_dist").square() / eps.shape[1]
    feature_gap = torch.cdist(features, features, p=1) / features.shape[1]
    return torch.exp(-(noise_gap * feature_gap).mean())
