"""How one entry of a payload travels. Its bytes follow from the chain, its shape and two properties."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedchoir.compression import rounding, selection, symmetric
from fedchoir.compression.chain import Chain

LEAST = 256  # numbers of an entry that is compressed at all; biases, counts and masks are rows and travel as they are
LEAST_COLUMNS = 32  # of an entry in which numbers are left out


@dataclass(frozen=True)
class Coding:
    """How an entry of this shape travels.

    Attributes:
        half: it is a symmetric matrix, and one half travels.
        sparse: numbers may be left out (``topk``, ``lowrank``); otherwise they are only rounded.
    """

    chain: Chain
    shape: tuple[int, ...]
    dtype: torch.dtype
    half: bool = False
    sparse: bool = False

    @property
    def coded(self) -> bool:
        """Whether the entry is compressed: matrices of float32."""
        return self.dtype == torch.float32 and len(self.shape) >= 2 and math.prod(self.shape) >= LEAST

    @property
    def nbytes(self) -> int:
        """Bytes that the receiver holds."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def selects(self) -> Literal["topk", "lowrank", ""]:
        """The stage that leaves numbers out of this entry."""
        if not self.coded or not self.sparse or selection.rows_of(self.shape)[1] < LEAST_COLUMNS:
            return ""
        if self.chain.topk is not None:
            return "topk"
        rank = self.chain.lowrank
        return "lowrank" if rank and 2 * selection.factor_count(self.shape, self.half, rank) <= self._count else ""

    @property
    def lossy(self) -> bool:
        """Whether the receiver gets other numbers."""
        return bool(self.selects) or (self.coded and self.chain.rounding is not None)

    @property
    def size(self) -> int:
        """Bytes that travel, before zstd."""
        if not self.coded:
            return self.nbytes
        numbers = rounding.size(self._numbers, self.chain.rounding)
        if self.selects == "topk":
            return selection.mask_size(self._count, self._numbers) + 4 + numbers
        return numbers + (self._signs if self.selects == "lowrank" else 0)

    def encode(self, tensor: Tensor) -> bytes:
        """The bytes of an entry on the CPU."""
        if not self.coded:
            return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        values = symmetric.half(tensor) if self.half else tensor.contiguous().view(-1)
        if self.selects == "topk":
            assert self.chain.topk is not None
            mask = selection.largest(values, self.shape, self.half, self.chain.topk)
            rest = values[~mask]
            fill = rest.mean() if rest.numel() else values.new_zeros(())
            numbers = rounding.encode(values[mask], self.chain.rounding)
            return selection.mask_bytes(mask) + np.float32(fill).astype("<f4").tobytes() + numbers
        if self.selects == "lowrank":
            assert self.chain.lowrank is not None
            factors, signs = selection.factors(values, self.shape, self.half, self.chain.lowrank)
            return signs.numpy().tobytes() + rounding.encode(factors, self.chain.rounding)
        return rounding.encode(values, self.chain.rounding)

    def decode(self, raw: bytes) -> Tensor:
        """The entry of `size` bytes."""
        if not self.coded:
            flat = torch.frombuffer(bytearray(raw), dtype=self.dtype) if raw else torch.zeros(0, dtype=self.dtype)
            return flat.view(self.shape)
        values = self._values(raw)
        return symmetric.whole(values, self.shape) if self.half else values.view(self.shape)

    def _values(self, raw: bytes) -> Tensor:
        if self.selects == "topk":
            place = selection.mask_size(self._count, self._numbers)
            mask = selection.read_mask(raw[:place], self._count, self._numbers)
            values = torch.full((self._count,), float(np.frombuffer(raw, "<f4", 1, offset=place)[0]))
            values[mask] = rounding.decode(raw[place + 4 :], self._numbers, self.chain.rounding)
            return values
        if self.selects == "lowrank":
            assert self.chain.lowrank is not None
            signs = torch.from_numpy(np.frombuffer(raw, np.int8, self._signs).copy())
            factors = rounding.decode(raw[self._signs :], self._numbers, self.chain.rounding)
            return selection.product(factors, signs, self.shape, self.half, self.chain.lowrank)
        return rounding.decode(raw, self._count, self.chain.rounding)

    @property
    def _count(self) -> int:
        """Numbers of the matrix, or of its half."""
        return symmetric.count(self.shape) if self.half else math.prod(self.shape)

    @property
    def _numbers(self) -> int:
        """Numbers that travel."""
        if self.selects == "topk":
            return selection.kept_count(self.shape, self.half, self.chain.topk or 0.0)
        if self.selects == "lowrank":
            return selection.factor_count(self.shape, self.half, self.chain.lowrank or 0)
        return self._count

    @property
    def _signs(self) -> int:
        return (self.chain.lowrank or 0) if self.half else 0
