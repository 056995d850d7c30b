"""What a chain leaves out of a matrix: all but the largest numbers, or all but the strongest directions."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedchoir.compression import symmetric
from fedchoir.payload import PayloadError

Shape = tuple[int, ...]


def rows_of(shape: Shape) -> tuple[int, int]:
    """Rows and columns; a convolution is filters × rest."""
    return shape[0], math.prod(shape[1:])


# -- top-k -------------------------------------------------------------------------------------------------------------


def kept_count(shape: Shape, half: bool, share: float) -> int:
    """How many numbers are sent."""
    rows, columns = rows_of(shape)
    return math.ceil(share * symmetric.count(shape)) if half else rows * math.ceil(share * columns)


def largest(values: Tensor, shape: Shape, half: bool, share: float) -> Tensor:
    """A mask of the numbers to send: the largest magnitudes of every row. In one half of a symmetric matrix a number
    is in two rows, and its better rank counts."""
    mask = torch.zeros(values.numel(), dtype=torch.bool)
    if half:
        mask[_by_best_rank(values.abs(), shape)[: kept_count(shape, half, share)]] = True
        return mask
    rows, columns = rows_of(shape)
    order = values.abs().view(rows, columns).argsort(dim=1, descending=True, stable=True)
    mask.view(rows, columns).scatter_(1, order[:, : math.ceil(share * columns)], True)
    return mask


def _by_best_rank(magnitudes: Tensor, shape: Shape) -> Tensor:
    u, v = symmetric.pairs(*shape)
    full = magnitudes.new_full((shape[0], shape[0]), -1.0)
    full[u, v] = full[v, u] = magnitudes
    ranks = full.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    best = torch.minimum(ranks[u, v], ranks[v, u])
    order = magnitudes.argsort(descending=True, stable=True)
    return order[best[order].argsort(stable=True)]


def mask_size(count: int, kept: int) -> int:
    """Bytes of a mask: one bit a number, or the indices, whichever is less."""
    return min(-(-count // 8), kept * _index(count).itemsize)


def _index(count: int) -> np.dtype[np.unsignedinteger]:
    return np.dtype("<u2" if count <= 2**16 else "<u4")


def mask_bytes(mask: Tensor) -> bytes:
    flags: NDArray[np.bool_] = mask.numpy()
    bits = np.packbits(flags).tobytes()
    indices = np.flatnonzero(flags).astype(_index(len(flags))).tobytes()
    return bits if len(bits) <= len(indices) else indices


def read_mask(raw: bytes, count: int, kept: int) -> Tensor:
    """The mask with exactly ``kept`` numbers, or `PayloadError`."""
    if len(raw) == -(-count // 8):
        flags = np.unpackbits(np.frombuffer(raw, np.uint8), count=count).astype(bool)
    else:
        indices = np.frombuffer(raw, _index(count))
        flags = np.zeros(count, dtype=bool)
        flags[indices[indices < count]] = True
    if int(flags.sum()) != kept:
        raise PayloadError(f"a mask with {int(flags.sum())} numbers, and the chain keeps {kept}")
    return torch.from_numpy(flags)


# -- low rank ----------------------------------------------------------------------------------------------------------


def factor_count(shape: Shape, half: bool, rank: int) -> int:
    """Numbers in the factors."""
    rows, columns = rows_of(shape)
    return rank * rows if half else rank * (rows + columns)


def factors(values: Tensor, shape: Shape, half: bool, rank: int) -> tuple[Tensor, Tensor]:
    """The factors of the best approximation of a rank, and the signs of its eigenvalues (one half only).

    They are computed in double precision. A matrix that is not finite gives factors that are not.
    """
    if not bool(values.isfinite().all()):
        broken = torch.full((factor_count(shape, half, rank),), float("nan"))
        return broken, torch.ones(rank if half else 0, dtype=torch.int8)
    if half:
        eigenvalues, vectors = torch.linalg.eigh(symmetric.square(values.double(), shape))
        order = eigenvalues.abs().argsort(descending=True, stable=True)[:rank]
        factor = vectors[:, order] * eigenvalues[order].abs().sqrt()
        return factor.float().reshape(-1), torch.where(eigenvalues[order] < 0, -1, 1).to(torch.int8)
    u, s, v = torch.linalg.svd(values.double().view(rows_of(shape)), full_matrices=False)
    root = s[:rank].sqrt()
    both = torch.cat([(u[:, :rank] * root).flatten(), (root[:, None] * v[:rank]).flatten()])
    return both.float(), torch.ones(0, dtype=torch.int8)


def product(numbers: Tensor, signs: Tensor, shape: Shape, half: bool, rank: int) -> Tensor:
    """The numbers of the matrix that factors stand for."""
    rows, columns = rows_of(shape)
    if half:
        u, v = symmetric.pairs(*shape)
        factor = numbers.view(rows, rank)
        return ((factor * signs.sign().float()) @ factor.T)[u, v]
    return (numbers[: rows * rank].view(rows, rank) @ numbers[rows * rank :].view(rank, columns)).view(-1)
