"""FBCL's public phase: one Gaussian per image, aligned between clients (FIA), decorrelated in the batch (FBM)."""

from torch import Tensor

from fedchoir.losses._common import check_choice, cosines, off_diagonal, product

FIA_REDUCTIONS = ("sum", "mean")


def gaussian(feature_map: Tensor, diagonal: bool = False) -> tuple[Tensor, Tensor]:
    """Mean and covariance of an image's feature vectors over its positions.

    FBCL eq. 2, for each image, over its m = height·width positions:

        μ = Σ_i h_i / m,   δ = Σ_i (h_i − μ)(h_i − μ)ᵀ / m

    Args:
        feature_map: mapped features, B×D×height×width or B×D×m.
        diagonal: return the variances alone: a payload of B·D numbers instead of B·D².

    Returns:
        μ, B×D, and δ, B×D×D (B×D if `diagonal`).

    >>> import torch
    >>> mu, delta = gaussian(torch.tensor([[[[1.0, 3.0]], [[2.0, 0.0]]]]))
    >>> mu.tolist(), delta.tolist()
    ([[2.0, 1.0]], [[[1.0, -1.0], [-1.0, 1.0]]])
    """
    h = feature_map.flatten(2)
    mu = h.mean(dim=2)
    centred = h - mu.unsqueeze(2)
    if diagonal:
        return mu, centred.square().mean(dim=2)
    return mu, product(centred, centred.transpose(1, 2)) / h.shape[2]


def fia(mu: Tensor, delta: Tensor, mu_mean: Tensor, delta_mean: Tensor, reduction: str = "sum") -> Tensor:
    """Feature instance-level alignment: match the clients' mean Gaussian of every public image.

    FBCL eq. 3, averaged over the batch, with Frobenius norms:

        L = ‖μ − μ̄‖² + ‖δ − δ̄‖²

    "sum" is that equation. With "mean" each norm is divided by its number of entries, D and D²: beside the sums, FBM
    with its weight of 0.05 has no effect.

    Args:
        mu: means, B×D.
        delta: covariances, B×D×D, or variances, B×D.
        mu_mean: mean of `mu` over clients, B×D; detached.
        delta_mean: mean of `delta` over clients, of the same shape; detached.
        reduction: "sum" or "mean" over the entries of μ and of δ.

    >>> import torch
    >>> mu, delta = torch.zeros(1, 2), torch.zeros(1, 2, 2)
    >>> fia(mu, delta, mu + 1, delta + 0.5).item()  # 2·1² + 4·0.5²
    3.0
    >>> fia(mu, delta, mu + 1, delta + 0.5, "mean").item()  # 1² + 0.5²
    1.25
    """
    check_choice("reduction", reduction, FIA_REDUCTIONS)
    # Variances and covariances would broadcast.
    if mu.shape != mu_mean.shape or delta.shape != delta_mean.shape:
        raise ValueError(
            f"fia: mu {tuple(mu.shape)}, delta {tuple(delta.shape)} do not match the consensus's"
            f" {tuple(mu_mean.shape)}, {tuple(delta_mean.shape)}; use one `diagonal` setting everywhere"
        )
    mean_gap = (mu - mu_mean.detach()).square()
    covariance_gap = (delta - delta_mean.detach()).square()
    if reduction == "mean":
        return mean_gap.mean() + covariance_gap.mean()
    return (mean_gap.sum() + covariance_gap.sum()) / mu.shape[0]


def fbm(mu: Tensor) -> Tensor:
    """Feature basic-matrix consistency: make the mean features of a batch orthogonal.

    FBCL eq. 4:

        L = Σ_{u≠v} |cos(μ_u, μ_v)| / (B (B − 1))

    Args:
        mu: means, B×D.

    >>> import torch
    >>> fbm(torch.tensor([[2.0, 0.0], [0.0, 3.0]])).item()
    0.0
    >>> fbm(torch.tensor([[2.0, 0.0], [-4.0, 0.0]])).item()
    1.0
    """
    b = mu.shape[0]
    return off_diagonal(cosines(mu, mu)).abs().sum() / max(b * (b - 1), 1)
