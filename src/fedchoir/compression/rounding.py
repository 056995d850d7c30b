"""Numbers as bytes: float32 as they are, float16 with a scale, or 8 bits with a range for every 256 of them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedchoir.compression.chain import Rounding

BLOCK = 256  # numbers with one range in int8: about a row of a matrix
LEVELS = 255
TOP = 15  # the largest magnitude becomes at most 2^15, below float16's 65504
Floats = NDArray[np.float32]


def size(count: int, rounding: Rounding | None) -> int:
    """Bytes of so many numbers."""
    if rounding == "fp16":
        return 4 + 2 * count
    return 8 * -(-count // BLOCK) + count if rounding == "int8" else 4 * count


def encode(values: Tensor, rounding: Rounding | None) -> bytes:
    """A row of float32 numbers as `size` bytes. Numbers that are not finite do not become finite."""
    if rounding == "fp16":
        return _half(values)
    return _int8(values) if rounding == "int8" else _bytes(values)


def decode(raw: bytes, count: int, rounding: Rounding | None) -> Tensor:
    """The numbers of `size` bytes."""
    if rounding == "fp16":
        scale = np.frombuffer(raw, "<f4", 1)
        halves = torch.from_numpy(np.frombuffer(raw, "<f2", count, offset=4).astype(np.float32))
        return halves * torch.from_numpy(scale.astype(np.float32))
    if rounding == "int8":
        blocks = -(-count // BLOCK)
        ranges = torch.from_numpy(np.frombuffer(raw, "<f4", 2 * blocks).astype(np.float32))
        codes = torch.from_numpy(np.frombuffer(raw, np.uint8, count, offset=8 * blocks).astype(np.float32))
        low, step = (part.repeat_interleave(BLOCK)[:count] for part in ranges.view(2, blocks))
        return low + codes * step
    return torch.from_numpy(np.frombuffer(raw, "<f4", count).astype(np.float32))


def _half(values: Tensor) -> bytes:
    """float16 of the numbers times a power of two, so that none overflows and few underflow."""
    largest = values.abs().max() if values.numel() else values.new_zeros(())
    exponent = int(torch.frexp(largest).exponent) if bool(largest.isfinite()) and bool(largest) else TOP
    shift = min(100, TOP - exponent)
    scaled = torch.ldexp(values, torch.tensor(shift))
    return np.float32(2.0**-shift).astype("<f4").tobytes() + scaled.half().numpy().astype("<f2").tobytes()


def _int8(values: Tensor) -> bytes:
    """Each block from its least to its largest number in 255 equal steps."""
    blocks = -(-values.numel() // BLOCK)
    padded = torch.cat([values, values[-1:].expand(blocks * BLOCK - values.numel())]).view(blocks, BLOCK)
    low, high = torch.aminmax(padded, dim=1)
    step = (high - low) / LEVELS
    codes = ((padded - low[:, None]) / step[:, None].clamp_min(torch.finfo(torch.float32).tiny)).round()
    codes = codes.nan_to_num(0.0).clamp(0, LEVELS).to(torch.uint8).view(-1)[: values.numel()]
    return _bytes(torch.cat([low, step])) + codes.numpy().tobytes()


def _bytes(values: Tensor) -> bytes:
    return values.numpy().astype("<f4").tobytes()
