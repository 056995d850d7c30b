"""Losses on correlations between columns: FCCM over logits and FedDecorr over features."""

import torch
from torch import Tensor

from fedchoir.losses._common import check_choice, off_diagonal, product

STANDARDISE = ("biased", "unbiased")
DECORRELATION_SCALES = ("paper", "official")
_STD_FLOOR = 1e-5


def _centre(z: Tensor) -> Tensor:
    """Subtract each column's mean over the batch.

    The first row is subtracted beforehand, so that a constant column becomes exactly 0. Otherwise the division by its
    tiny std would turn rounding noise into ±1.
    """
    shifted = z - z[:1].detach()
    return shifted - shifted.mean(dim=0)


def _standardise(z: Tensor, standardise: str) -> Tensor:
    """Columns of B×C with mean 0 and std 1 over the batch."""
    centred = _centre(z)
    if standardise == "unbiased":
        return centred / centred.std(dim=0)
    # Clamped inside the root, whose derivative at 0 is infinite.
    variance = centred.square().mean(dim=0)
    return centred / variance.clamp_min(_STD_FLOOR**2).sqrt()


def cross_correlation(z: Tensor, z_mean: Tensor, standardise: str = "biased") -> Tensor:
    """Cross-correlation between a client's logits and the consensus over one public batch.

    FCCL+ (Huang et al., TPAMI 2023) eq. 1; FCCL (Huang et al., CVPR 2022) eq. 1:

        M_uv = Σ_b ẑ_bu ẑ̄_bv / B,   ẑ = (z − mean_b z) / std_b z

    Args:
        z: the client's logits, B×C.
        z_mean: the clients' mean logits, B×C; detached.
        standardise: "biased": the batch's std, at least 1e-5 (the papers' unit-norm form: entries lie in [−1, 1],
            and a constant column gives 0). "unbiased": std with B−1 and no floor (the released code: entries are
            smaller by (B−1)/B, and a constant column gives NaN).

    Returns:
        C×C; row = the client's class, column = the consensus's class.

    >>> z = torch.tensor([[1.0, 2.0], [2.0, 0.0], [3.0, 1.0]])
    >>> [[round(v, 4) for v in row] for row in cross_correlation(z, z).tolist()]
    [[1.0, -0.5], [-0.5, 1.0]]
    """
    check_choice("standardise", standardise, STANDARDISE)
    return product(_standardise(z, standardise).T, _standardise(z_mean.detach(), standardise)) / z.shape[0]


def fccm(z: Tensor, z_mean: Tensor, off_diagonal: float = 0.0051, standardise: str = "biased") -> Tensor:
    """Federated cross-correlation matrix loss: correlate equal classes, anticorrelate different ones.

    FCCL+ (Huang et al., TPAMI 2023) eq. 2; FCCL (CVPR 2022) eq. 2, with M from `cross_correlation`:

        L = Σ_u (1 − M_uu)² + λ Σ_{u≠v} (1 + M_uv)²

    The off-diagonal target is −1, not the 0 of Barlow Twins.

    Args:
        z: the client's logits, B×C.
        z_mean: the clients' mean logits, B×C; detached.
        off_diagonal: λ, the weight of the off-diagonal terms.
        standardise: as in `cross_correlation`.

    >>> z = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> abs(round(fccm(z, z).item(), 5))  # two opposite classes: M is 1 on the diagonal, −1 off it
    0.0
    >>> round(fccm(z, z.flip(1)).item(), 4)  # 2·(1+1)² + 2·0.0051·(1+1)²
    8.0408
    """
    m = cross_correlation(z, z_mean, standardise)
    diagonal = torch.eye(m.shape[0], dtype=m.dtype, device=m.device)
    weight = diagonal + off_diagonal * (1 - diagonal)
    target = 2 * diagonal - 1
    return (weight * (m - target).square()).sum()


def decorrelation(h: Tensor, scale: str = "paper") -> Tensor:
    """FedDecorr: prevent dimensional collapse of the features.

    FedDecorr (Shi et al., ICLR 2023), its regulariser without the constant diagonal:

        L = mean_{u≠v} K_uv²,   K = ĥᵀ ĥ / B, the d×d correlation matrix of standardised features

    "official" is the scale of the released code, which takes ĥ with the unbiased std, does not divide ĥᵀ ĥ by B, but
    the squares: L · (B − 1)² / B, which is 62 L at its batch of 64.

    Args:
        h: features, B×d.
        scale: "paper" or "official".

    >>> round(decorrelation(torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])).item(), 4)
    0.0
    >>> round(decorrelation(torch.tensor([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]])).item(), 4)
    1.0
    """
    check_choice("scale", scale, DECORRELATION_SCALES)
    standard = _standardise(h, "biased")
    b, d = h.shape
    correlation = product(standard.T, standard) / b
    factor = 1.0 if scale == "paper" else (b - 1) ** 2 / b
    return factor * off_diagonal(correlation).square().sum() / max(d * (d - 1), 1)
