"""What the kernels share: activations, the end of a sum over all positions, and how work is cut into programs.

Images lie in memory channels last, so a tensor is a matrix of positions (image, row, column) and channels. A program
works on a tile of it. Sums over positions are split into shares; the program that arrives last adds the shares up, in a
fixed order, so that the same input gives the same bits. With TRITON_INTERPRET=1 all kernels run on a CPU, slowly: so
they are tested.
"""

# Triton reads the annotations of its kernels, and has no types of its own.
# mypy: disable-error-code="no-untyped-def,import-untyped"

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedchoir.engines.local.fused import deferred_weight_grads as aside

INTERPRETED = triton.knobs.runtime.interpret
NONE, RELU, RELU6, SILU = 0, 1, 2, 3  # activations, as the kernels know them

LANES = 8  # channels are counted in eights: so many of two bytes are one load
CHANNELS = 32  # a tile's
MOST_SHARES = 256  # that the last program adds up
PROGRAMS = 1056  # eight for each multiprocessor of a large GPU


@triton.jit
def activate(x, ACT: tl.constexpr):
    if ACT == 1:
        x = tl.maximum(x, 0.0)
    elif ACT == 2:
        x = tl.minimum(tl.maximum(x, 0.0), 6.0)
    elif ACT == 3:
        x = x * tl.sigmoid(x)
    return x


@triton.jit
def back(d, x, ACT: tl.constexpr):
    """A gradient ``d`` of the activation's output, taken back to its input ``x``."""
    if ACT == 1:
        d = tl.where(x > 0.0, d, 0.0)
    elif ACT == 2:
        d = tl.where((x > 0.0) & (x < 6.0), d, 0.0)
    elif ACT == 3:
        s = tl.sigmoid(x)
        d = d * (s + x * s * (1.0 - s))
    return d


@triton.jit
def of_channels(mean, rstd, weight, bias, c, known):
    """What a norm knows of a tile's channels."""
    centre, r = tl.load(mean + c, mask=known, other=0.0), tl.load(rstd + c, mask=known, other=0.0)
    w, b = tl.load(weight + c, mask=known, other=0.0), tl.load(bias + c, mask=known, other=0.0)
    return centre, r, w, b


@triton.jit
def hand_in(one, two, shares, arrived, share, count, block, c, known, C):
    """Store two sums of this program; tell whether all programs of these channels have stored theirs."""
    tl.store(shares + share * 2 * C + c, one, mask=known)
    tl.store(shares + (share * 2 + 1) * C + c, two, mask=known)
    tl.debug_barrier()
    return tl.atomic_add(arrived + block, 1) == count - 1


@triton.jit
def add_up(shares, arrived, count, block, c, known, C, BC: tl.constexpr):
    """Both sums over all programs; for the one that arrived last, which leaves the counter at 0 for the next kernel."""
    one, two = tl.zeros((BC,), tl.float32), tl.zeros((BC,), tl.float32)
    for first in range(0, count, 64):
        s = first + tl.arange(0, 64)
        there = (s < count)[:, None] & known[None, :]
        place = shares + s[:, None] * 2 * C + c[None, :]
        one += tl.sum(tl.load(place, mask=there, other=0.0, cache_modifier=".cg"), 0)
        two += tl.sum(tl.load(place + C, mask=there, other=0.0, cache_modifier=".cg"), 0)
    tl.store(arrived + block, 0)
    return one, two


@triton.jit
def settle(one, two, pivot, mean, rstd, running_mean, running_var, seen, n, eps, momentum, block, c, known, track):
    """Mean and deviation from sums of (x − pivot) and its square; the running statistics move along, if they should."""
    away = one / n
    m = pivot + away
    var = tl.maximum(two / n - away * away, 0.0)
    tl.store(mean + c, m, mask=known)
    tl.store(rstd + c, 1.0 / tl.sqrt(var + eps), mask=known)
    if track != 0:
        unbiased = var * (n / tl.maximum(n - 1.0, 1.0))
        old_mean = tl.load(running_mean + c, mask=known, other=0.0)
        old_var = tl.load(running_var + c, mask=known, other=0.0)
        tl.store(running_mean + c, old_mean + momentum * (m - old_mean), mask=known)
        tl.store(running_var + c, old_var + momentum * (unbiased - old_var), mask=known)
        if block == 0:
            tl.store(seen, tl.load(seen) + 1)


def blocks(channels: int) -> int:
    return triton.cdiv(channels, CHANNELS)


def shares_of(tiles: int, channels: int) -> int:
    """Into how many shares the positions of so many tiles are split."""
    return min(tiles, MOST_SHARES, triton.cdiv(PROGRAMS, blocks(channels)))


@cache
def _counters(device: torch.device) -> Tensor:
    return torch.zeros((1 + aside.STREAMS, 4096), dtype=torch.int32, device=device)


def counters(device: torch.device) -> Tensor:
    """Zeros, one for each block of channels. Kernels of one stream run one after the other, and leave zeros."""
    return _counters(device)[aside.here()]


def empty(shape: tuple[int, int, int, int], like: Tensor) -> Tensor:
    """Images, channels last."""
    _, c, h, w = shape
    return torch.empty_strided(shape, (h * w * c, 1, w * c, c), device=like.device, dtype=like.dtype)


def images(t: Tensor) -> Tensor:
    """No copy if they lie in memory channels last."""
    return t.contiguous(memory_format=torch.channels_last)


def per_channel(like: Tensor, rows: int = 1) -> Tensor:
    return torch.empty((rows, like.shape[1]), device=like.device, dtype=torch.float32)
