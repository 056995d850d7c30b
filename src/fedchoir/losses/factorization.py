"""FedFoA: feature correlations from a QR factorisation, and the alignment of features to another client's.

``solver`` chooses between two ways that agree: ``factors`` (LAPACK's QR and SVD, fastest on the CPU) and ``products``
(Cholesky and matrix products in float64, fastest on a GPU and without synchronisation). ``auto`` is ``factors`` on the
CPU, ``products`` on other devices.
"""

import math
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from fedchoir.losses._common import check_choice, product

Solver = Literal["auto", "factors", "products"]
SOLVERS = ("auto", "factors", "products")
_FLOOR = 1e-10  # floor of singular values, relative to the largest


def _check_tall(z: Tensor) -> None:
    if z.ndim != 2 or z.shape[0] < z.shape[1]:
        raise ValueError(
            f"features have shape {tuple(z.shape)}; FedFoA needs m×n with a batch m of at least n features"
        )


def _by_products(z: Tensor, solver: str) -> bool:
    check_choice("solver", solver, SOLVERS)
    return solver == "products" or (solver == "auto" and z.device.type != "cpu")


def feature_correlation(z: Tensor, solver: Solver = "auto") -> Tensor:
    """Feature correlation matrix R of a batch, the n×n payload of FedFoA's clients.

    FedFoA eq. 4: Z = Q R with QᵀQ = I and R upper triangular. QR leaves the sign of every row of R open; rows are
    flipped so that no diagonal entry is negative. R is then unique for Z of full rank (it is the Cholesky factor of
    ZᵀZ), so R of different clients and batches may be averaged and their traces compared.

    Args:
        z: calibrated features, m×n with m ≥ n; R has no gradient.
        solver: see the module.

    Returns:
        n×n, upper triangular.

    >>> feature_correlation(torch.tensor([[-3.0, 0.0], [0.0, -2.0], [0.0, 0.0]])).abs().tolist()
    [[3.0, 0.0], [0.0, 2.0]]
    """
    _check_tall(z)
    with torch.no_grad(), torch.autocast(z.device.type, enabled=False):
        if _by_products(z, solver):
            return _cholesky(z.double()).to(z.dtype)
        r = torch.linalg.qr(z, mode="r").R
    # Not sign(), which would zero the row of a zero diagonal entry.
    flip = torch.where(r.diagonal() < 0, -1.0, 1.0).to(r.dtype)
    return flip.unsqueeze(1) * r


def _cholesky(z: Tensor) -> Tensor:
    """R of ZᵀZ = RᵀR. A shift of the size of the rounding error keeps all eigenvalues positive."""
    n = z.shape[1]
    gram = z.T @ z
    shift = n * torch.finfo(z.dtype).eps * gram.trace() + torch.finfo(z.dtype).tiny
    return torch.linalg.cholesky_ex(gram + shift * torch.eye(n, dtype=z.dtype, device=z.device)).L.T


def procrustes(z: Tensor, r: Tensor, solver: Solver = "auto") -> Tensor:
    """The orthonormal Q* with which another client's correlations come nearest to Z.

    FedFoA eq. 5-6 and Lemma 1 (which misprints V Uᵀ as V U; the proof and eq. 6 are right):

        Q* = argmin ‖Z − Q R‖_F over QᵀQ = I  =  V Uᵀ,   R Zᵀ = U Σ Vᵀ

    ``factors`` takes the SVD of an n×n matrix instead of the n×m one: with Z = Q_z R_z, the SVD R R_zᵀ = U Σ Wᵀ gives
    V = Q_z W. ``products`` iterates matrix products that converge to Q*, the orthonormal polar factor of Z Rᵀ. For Z
    without full rank Q* is one of several minimisers.

    Args:
        z: features, m×n with m ≥ n.
        r: another client's R, n×n, or several, J×n×n; they share the factorisation of Z.
        solver: see the module.

    Returns:
        Q*, m×n (J×m×n), without gradient.

    >>> z = torch.tensor([[0.0, 2.0], [3.0, 0.0], [0.0, 0.0]])
    >>> [[round(abs(v), 4) for v in row] for row in procrustes(z, torch.eye(2)).tolist()]
    [[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]]
    """
    _check_tall(z)
    n = z.shape[1]
    if r.ndim not in (2, 3) or r.shape[-2:] != (n, n):
        raise ValueError(f"correlation has shape {tuple(r.shape)}; features of width {n} need {n}×{n}")
    with torch.no_grad(), torch.autocast(z.device.type, enabled=False):
        if _by_products(z, solver):
            return _polar(z.double() @ r.double().mT).to(z.dtype)
        q_z, r_z = torch.linalg.qr(z)
        u, _, w_t = torch.linalg.svd(r @ r_z.T)
        return q_z @ (u @ w_t).mT


def _polar(b: Tensor) -> Tensor:
    """V Uᵀ of B = V Σ Uᵀ (…×m×n): every singular value is driven to 1 by x ↦ ½ α x (3 − α² x²).

    Newton-Schulz with the α that raises the smallest value most while none leaves [0, 1]; float64, so that rounding
    does not affect values that start small. Directions that B lacks are taken from the identity.
    """
    m, n = b.shape[-2:]
    same = torch.eye(m, n, dtype=b.dtype, device=b.device)
    # √‖BᵀB‖ is a cheap upper bound of the largest singular value
    bound = torch.linalg.matrix_norm(b.mT @ b).sqrt()[..., None, None]
    x = (b / bound.clamp_min(torch.finfo(b.dtype).tiny) + _FLOOR * same) / (1 + _FLOOR)
    for alpha in _scales(_FLOOR):
        x = x @ (1.5 * alpha * same[:n] - 0.5 * alpha**3 * (x.mT @ x))
    return x


def _scales(low: float) -> Iterator[float]:
    """α of each step until values in [low, 1] are 1.

    >>> len(list(_scales(1e-10)))
    29
    """
    while low < 1 - 1e-14:
        alpha = math.sqrt(3 / (1 + low + low * low))
        low = min(1.0, 0.5 * alpha * low * (3 - alpha * alpha * low * low))
        yield alpha


def understanding_gaps(z: Tensor, r: Tensor, solver: Solver = "auto") -> Tensor:
    """ℓ_A of FedFoA eq. 7 (see `mutual_understanding`) for each of several clients' correlations: J×n×n → J.

    >>> z = torch.tensor([[3.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    >>> [round(gap, 4) for gap in understanding_gaps(z, torch.stack([feature_correlation(z), torch.eye(2)])).tolist()]
    [0.0, 2.2361]
    """
    target = product(procrustes(z, r, solver), r.detach())
    return torch.linalg.vector_norm(z - target, dim=(-2, -1))


def mutual_understanding(z: Tensor, r: Tensor, solver: Solver = "auto") -> Tensor:
    """The distance between a client's features and their best alignment with another client's correlations.

    FedFoA eq. 7: ℓ_A = ‖Z − Q* R‖ with Q* from `procrustes`, detached. The paper does not name the norm; the trace in
    Lemma 1's proof implies the Frobenius norm over the whole batch, without normalisation.

    Args:
        z: features, m×n with m ≥ n.
        r: another client's R, n×n, or several, J×n×n, whose terms are added; detached.
        solver: see the module.

    >>> z = torch.tensor([[3.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    >>> round(mutual_understanding(z, feature_correlation(z)).item(), 4)
    0.0
    >>> round(mutual_understanding(z, torch.eye(2)).item(), 4)  # √(2² + 1²)
    2.2361
    """
    return understanding_gaps(z, r, solver).sum()
