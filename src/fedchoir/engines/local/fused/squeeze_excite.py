"""Squeeze and excitation: two small linear layers on the mean of each map, as one kernel forward and two back.

As layers of their own they would be a dozen kernels that last longer to start than to run.
"""

# mypy: disable-error-code="no-untyped-def,import-untyped"

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedchoir.engines.local.fused.common import LANES

FORWARD_TILE = {"BN": 16, "BK": 128, "BC": 128, "num_warps": 4}  # images; channels of a step, and of a program
WEIGHT_TILE = {"BN": 128, "BC": 32, "num_warps": 4}
SIZES = ["N", "C8", "HW"]


@triton.jit
def _dot(a, b, HALF: tl.constexpr, PRECISION: tl.constexpr):
    if HALF:
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16))
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit(do_not_specialize=SIZES)
def _gate(mean, w1, b1, w2, b2, hidden, gate, N, C8, R, HALF: tl.constexpr, PRECISION: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr):  # fmt: skip # noqa: E501
    """``gate = sigmoid(w2·silu(w1·mean + b1) + b2)``, and what is inside of the silu: each program finds that again."""
    C = C8 * 8
    n, r = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BR)
    here, thin = n < N, r < R
    h = tl.zeros((BN, BR), tl.float32)
    for start in range(0, C, BK):
        k = start + tl.arange(0, BK)
        m = tl.load(mean + n[:, None] * C + k[None, :], mask=here[:, None] & (k < C)[None, :], other=0.0)
        w = tl.load(w1 + r[None, :] * C + k[:, None], mask=(k < C)[:, None] & thin[None, :], other=0.0)
        h += _dot(m, w, HALF, PRECISION)
    h += tl.load(b1 + r, mask=thin, other=0.0)[None, :]
    if tl.program_id(1) == 0:
        tl.store(hidden + n[:, None] * R + r[None, :], h, mask=here[:, None] & thin[None, :])
    h = tl.where(thin[None, :], h * tl.sigmoid(h), 0.0)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    w = tl.load(w2 + c[None, :] * R + r[:, None], mask=(c < C)[None, :] & thin[:, None], other=0.0)
    z = _dot(h, w, HALF, PRECISION) + tl.load(b2 + c, mask=c < C, other=0.0)[None, :]
    tl.store(gate + n[:, None] * C + c[None, :], tl.sigmoid(z), mask=here[:, None] & (c < C)[None, :])


@triton.jit(do_not_specialize=SIZES)
def _back_to_mean(dz, hidden, w1, w2, dhidden, through, N, C8, R, HW, HALF: tl.constexpr, PRECISION: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr):  # fmt: skip # noqa: E501
    """From the gradient before the gate's sigmoid to that of every position which the mean was taken of."""
    C = C8 * 8
    n, r = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BR)
    here, thin = n < N, r < R
    spot, there = n[:, None] * R + r[None, :], here[:, None] & thin[None, :]
    h = tl.load(hidden + spot, mask=there, other=0.0)
    d = tl.zeros((BN, BR), tl.float32)
    for start in range(0, C, BK):
        k = start + tl.arange(0, BK)
        z = tl.load(dz + n[:, None] * C + k[None, :], mask=here[:, None] & (k < C)[None, :], other=0.0)
        w = tl.load(w2 + k[:, None] * R + r[None, :], mask=(k < C)[:, None] & thin[None, :], other=0.0)
        d += _dot(z, w, HALF, PRECISION)
    s = tl.sigmoid(h)
    d = tl.where(there, d * (s + h * s * (1.0 - s)), 0.0)
    if tl.program_id(1) == 0:
        tl.store(dhidden + spot, d, mask=there)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    w = tl.load(w1 + r[:, None] * C + c[None, :], mask=(c < C)[None, :] & thin[:, None], other=0.0)
    m = _dot(d, w, HALF, PRECISION) / HW
    tl.store(through + n[:, None] * C + c[None, :], m, mask=here[:, None] & (c < C)[None, :])


@triton.jit(do_not_specialize=SIZES)
def _weight_gradients(dz, hidden, dhidden, mean, dw1, db1, dw2, db2, N, C8, R, HALF: tl.constexpr, PRECISION: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr):  # fmt: skip # noqa: E501
    """Of the first layer or of the second, for a tile of the channels."""
    C = C8 * 8
    c, r = tl.program_id(0) * BC + tl.arange(0, BC), tl.arange(0, BR)
    known, thin = c < C, r < R
    wide, narrow = tl.zeros((BC,), tl.float32), tl.zeros((BR,), tl.float32)
    slopes = tl.zeros((BC, BR), tl.float32)
    first = tl.program_id(1) == 0
    for start in range(0, N, BN):
        n = start + tl.arange(0, BN)
        here = n < N
        side, thin_side = n[None, :] * C + c[:, None], n[:, None] * R + r[None, :]
        maps, cells = here[None, :] & known[:, None], here[:, None] & thin[None, :]
        if first:
            a = tl.load(mean + side, mask=maps, other=0.0)
            b = tl.load(dhidden + thin_side, mask=cells, other=0.0)
            narrow += tl.sum(b, 0)
        else:
            a = tl.load(dz + side, mask=maps, other=0.0)
            b = tl.load(hidden + thin_side, mask=cells, other=0.0)
            b = b * tl.sigmoid(b)
            wide += tl.sum(a, 1)
        slopes += _dot(a, b, HALF, PRECISION)
    there = known[:, None] & thin[None, :]
    if first:
        tl.store(dw1 + r[None, :] * C + c[:, None], slopes, mask=there)
        if tl.program_id(0) == 0:
            tl.store(db1 + r, narrow, mask=thin)
    else:
        tl.store(dw2 + c[:, None] * R + r[None, :], slopes, mask=there)
        tl.store(db2 + c, wide, mask=known)


def _options(squeezed: int, half: bool) -> dict[str, object]:
    exact = torch.get_float32_matmul_precision() == "highest"
    thin = max(16, triton.next_power_of_2(squeezed))
    return {"HALF": half, "PRECISION": "ieee" if exact else "tf32", "BR": thin}


def _programs(n: int, c: int) -> tuple[int, int]:
    return triton.cdiv(n, FORWARD_TILE["BN"]), triton.cdiv(c, FORWARD_TILE["BC"])


def gate(mean: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, half: bool) -> tuple[Tensor, Tensor]:
    """N×C means of the maps to N×C gates; and the N×R between the layers, for the way back. ``half``: bf16 products."""
    (n, c), r = mean.shape, len(w1)
    hidden, out = mean.new_empty((n, r)), torch.empty_like(mean)
    _gate[_programs(n, c)](
        mean, w1, b1, w2, b2, hidden, out, n, c // LANES, r, **_options(r, half), **FORWARD_TILE
    )  # fmt: skip
    return out, hidden


def back_to_mean(
    dz: Tensor, hidden: Tensor, positions: int, w1: Tensor, w2: Tensor, half: bool
) -> tuple[Tensor, Tensor]:
    """N×C for the positions that the mean was taken of; and the N×R between the layers, for `weight_gradients`."""
    (n, c), r = dz.shape, len(w1)
    dhidden, through = torch.empty_like(hidden), torch.empty_like(dz)
    _back_to_mean[_programs(n, c)](
        dz, hidden, w1, w2, dhidden, through, n, c // LANES, r, positions, **_options(r, half), **FORWARD_TILE
    )
    return through, dhidden


def weight_gradients(
    dz: Tensor, mean: Tensor, hidden: Tensor, dhidden: Tensor, w1: Tensor, w2: Tensor, half: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of the first layer's weight and bias, and of the second's."""
    (n, c), r = mean.shape, len(w1)
    dw1, dw2 = mean.new_empty(w1.shape), mean.new_empty(w2.shape)
    db1, db2 = mean.new_empty(r), mean.new_empty(c)
    _weight_gradients[triton.cdiv(c, WEIGHT_TILE["BC"]), 2](
        dz, hidden, dhidden, mean, dw1, db1, dw2, db2, n, c // LANES, r, **_options(r, half), **WEIGHT_TILE
    )
    return dw1, db1, dw2, db2
