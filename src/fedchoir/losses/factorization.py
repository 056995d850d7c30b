"""FedFoA: feature correlations from a QR factorisation, and how well a client can speak through another's."""

import torch
from torch import Tensor

from fedchoir.errors import UsageError
from fedchoir.losses._common import product


def _check_tall(z: Tensor) -> None:
    if z.ndim != 2 or z.shape[0] < z.shape[1]:
        raise UsageError(
            f"features have shape {tuple(z.shape)}; FedFoA needs m×n with a batch m of at least n features"
        )


def feature_correlation(z: Tensor) -> Tensor:
    """Feature correlation matrix R of a batch, the n×n matrix that FedFoA's clients share.

    FedFoA eq. 4: Z = Q R with QᵀQ = I and R upper triangular. QR leaves the sign of every row of R open, and
    libraries choose differently; rows are flipped so that no diagonal entry is negative. R is then unique
    for Z of full rank, and the same for every rotation of the batch, so that R of different clients and
    batches may be averaged and their traces compared.

    Args:
        z: calibrated features, m×n with m ≥ n. No gradient flows through R: it is a message, not a loss.

    Returns:
        n×n, upper triangular.

    >>> feature_correlation(torch.tensor([[-3.0, 0.0], [0.0, -2.0], [0.0, 0.0]])).abs().tolist()
    [[3.0, 0.0], [0.0, 2.0]]
    """
    _check_tall(z)
    with torch.autocast(z.device.type, enabled=False):
        r = torch.linalg.qr(z.detach(), mode="r").R
    # Not sign(), which would wipe out the row of a zero diagonal entry.
    flip = torch.where(r.diagonal() < 0, -1.0, 1.0).to(r.dtype)
    return flip.unsqueeze(1) * r


def procrustes(z: Tensor, r: Tensor) -> Tensor:
    """The orthonormal basis through which Z comes nearest to another client's correlations.

    FedFoA eq. 5-6 and Lemma 1 (where the answer is once misprinted as V U; the proof and eq. 6 have V Uᵀ):

        Q* = argmin ‖Z − Q R‖_F over QᵀQ = I  =  V Uᵀ,   R Zᵀ = U Σ Vᵀ

    The SVD is taken of an n×n matrix instead of the n×m one: with Z = Q_z R_z, the SVD R R_zᵀ = U Σ Wᵀ gives
    V = Q_z W. Nothing is inverted, so a Z without full rank is fine (Q* is then one of several minimisers).

    Args:
        z: features, m×n with m ≥ n.
        r: another client's R, n×n, or several stacked, J×n×n; they share the factorisation of Z.

    Returns:
        Q*, m×n (J×m×n), without gradient.

    >>> z = torch.tensor([[0.0, 2.0], [3.0, 0.0], [0.0, 0.0]])
    >>> [[round(abs(v), 4) for v in row] for row in procrustes(z, torch.eye(2)).tolist()]
    [[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]]
    """
    _check_tall(z)
    n = z.shape[1]
    if r.ndim not in (2, 3) or r.shape[-2:] != (n, n):
        raise UsageError(f"correlation has shape {tuple(r.shape)}; features of width {n} need {n}×{n}")
    with torch.no_grad(), torch.autocast(z.device.type, enabled=False):
        q_z, r_z = torch.linalg.qr(z)
        u, _, w_t = torch.linalg.svd(r @ r_z.T)
        return q_z @ (u @ w_t).mT


def mutual_understanding(z: Tensor, r: Tensor) -> Tensor:
    """How far a client's features are from what another's correlations can express.

    FedFoA eq. 7: ℓ_A = ‖Z − Q* R‖ with Q* from `procrustes`, held fixed. The paper leaves the norm open; the
    trace in Lemma 1's proof makes it the Frobenius norm, over the whole batch and without normalisation.

    Args:
        z: features, m×n with m ≥ n.
        r: another client's R, n×n, or several, J×n×n, whose terms are added up; no gradient flows into it.

    >>> z = torch.tensor([[3.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    >>> round(mutual_understanding(z, feature_correlation(z)).item(), 4)  # it understands itself
    0.0
    >>> round(mutual_understanding(z, torch.eye(2)).item(), 4)  # √(2² + 1²)
    2.2361
    """
    target = product(procrustes(z, r), r.detach())
    return torch.linalg.vector_norm(z - target, dim=(-2, -1)).sum()
