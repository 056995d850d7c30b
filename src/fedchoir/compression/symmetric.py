"""Symmetric matrices as one half: n×n with the diagonal, or n×(n−1), whose rows leave the diagonal out."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


def possible(shape: tuple[int, ...]) -> bool:
    """Whether a tensor of this shape can be a symmetric matrix."""
    return len(shape) == 2 and shape[0] >= 2 and shape[1] in (shape[0], shape[0] - 1)


def count(shape: tuple[int, ...]) -> int:
    """Numbers in one half."""
    return shape[0] * (shape[1] + 1) // 2 if shape[0] == shape[1] else shape[0] * shape[1] // 2


@lru_cache(maxsize=8)
def pairs(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Row and column in the n×n matrix of every number of the upper half."""
    u, v = torch.triu_indices(rows, rows, offset=0 if rows == columns else 1)
    return u, v


def half(matrix: Tensor) -> Tensor:
    """The upper half as a row of numbers.

    >>> half(torch.tensor([[2.0, 3.0], [2.0, 4.0], [3.0, 4.0]])).tolist()
    [2.0, 3.0, 4.0]
    """
    rows, columns = matrix.shape
    u, v = pairs(rows, columns)
    return matrix[u, v if rows == columns else v - 1]


def whole(half: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The matrix of its upper half.

    >>> whole(torch.tensor([2.0, 3.0, 4.0]), (3, 2)).tolist()
    [[2.0, 3.0], [2.0, 4.0], [3.0, 4.0]]
    """
    rows, columns = shape
    u, v = pairs(rows, columns)
    matrix = half.new_empty(rows, columns)
    matrix[u, v if rows == columns else v - 1] = half
    matrix[v, u] = half
    return matrix


def is_symmetric(matrix: Tensor) -> bool:
    """Whether both halves are equal, bit by bit."""
    return possible(tuple(matrix.shape)) and torch.equal(matrix, whole(half(matrix), tuple(matrix.shape)))


def square(half: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The n×n matrix of an upper half; a diagonal that is missing has each row's largest number."""
    n = shape[0]
    u, v = pairs(*shape)
    full = half.new_full((n, n), float("-inf"))
    full[u, v] = full[v, u] = half
    if shape[1] < n:
        full.fill_diagonal_(0).diagonal().copy_(_without_diagonal(full).amax(dim=1))
    return full


def _without_diagonal(full: Tensor) -> Tensor:
    return full.masked_fill(torch.eye(len(full), dtype=torch.bool), float("-inf"))
