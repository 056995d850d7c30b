"""Kernels of squeeze-and-excitation: one forward and two backward."""

# mypy: disable-error-code="no-untyped-def,import-untyped"

import triton
import triton.language as tl

SIZES = ["N", "C8", "HW"]


@triton.jit
def _dot(a, b, BF16: tl.constexpr, PRECISION: tl.constexpr):
    if BF16:
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16))
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit(do_not_specialize=SIZES)
def gate(
    mean, w1, b1, w2, b2, hidden, gate, N, C8, R, BF16: tl.constexpr, PRECISION: tl.constexpr, BR: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """``gate = sigmoid(w2·silu(hidden) + b2)`` with ``hidden = w1·mean + b1``, which every program computes again."""
    C = C8 * 8
    n, r = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BR)
    n_mask, r_mask = n < N, r < R
    h = tl.zeros((BN, BR), tl.float32)
    for start in range(0, C, BK):
        k = start + tl.arange(0, BK)
        m = tl.load(mean + n[:, None] * C + k[None, :], mask=n_mask[:, None] & (k < C)[None, :], other=0.0)
        w = tl.load(w1 + r[None, :] * C + k[:, None], mask=(k < C)[:, None] & r_mask[None, :], other=0.0)
        h += _dot(m, w, BF16, PRECISION)
    h += tl.load(b1 + r, mask=r_mask, other=0.0)[None, :]
    if tl.program_id(1) == 0:
        tl.store(hidden + n[:, None] * R + r[None, :], h, mask=n_mask[:, None] & r_mask[None, :])
    h = tl.where(r_mask[None, :], h * tl.sigmoid(h), 0.0)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    w = tl.load(w2 + c[None, :] * R + r[:, None], mask=(c < C)[None, :] & r_mask[:, None], other=0.0)
    z = _dot(h, w, BF16, PRECISION) + tl.load(b2 + c, mask=c < C, other=0.0)[None, :]
    tl.store(gate + n[:, None] * C + c[None, :], tl.sigmoid(z), mask=n_mask[:, None] & (c < C)[None, :])


@triton.jit(do_not_specialize=SIZES)
def pool_gradient(
    dz, hidden, w1, w2, dhidden, dpool, N, C8, R, HW, BF16: tl.constexpr, PRECISION: tl.constexpr, BR: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """From the gradient ``dz`` before the gate's sigmoid to the gradient of every position under the mean."""
    C = C8 * 8
    n, r = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BR)
    n_mask, r_mask = n < N, r < R
    h_offsets, h_mask = n[:, None] * R + r[None, :], n_mask[:, None] & r_mask[None, :]
    h = tl.load(hidden + h_offsets, mask=h_mask, other=0.0)
    d = tl.zeros((BN, BR), tl.float32)
    for start in range(0, C, BK):
        k = start + tl.arange(0, BK)
        z = tl.load(dz + n[:, None] * C + k[None, :], mask=n_mask[:, None] & (k < C)[None, :], other=0.0)
        w = tl.load(w2 + k[:, None] * R + r[None, :], mask=(k < C)[:, None] & r_mask[None, :], other=0.0)
        d += _dot(z, w, BF16, PRECISION)
    s = tl.sigmoid(h)
    d = tl.where(h_mask, d * (s + h * s * (1.0 - s)), 0.0)
    if tl.program_id(1) == 0:
        tl.store(dhidden + h_offsets, d, mask=h_mask)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    w = tl.load(w1 + r[:, None] * C + c[None, :], mask=(c < C)[None, :] & r_mask[:, None], other=0.0)
    m = _dot(d, w, BF16, PRECISION) / HW
    tl.store(dpool + n[:, None] * C + c[None, :], m, mask=n_mask[:, None] & (c < C)[None, :])


@triton.jit(do_not_specialize=SIZES)
def weight_gradients(
    dz, hidden, dhidden, mean, dw1, db1, dw2, db2, N, C8, R, BF16: tl.constexpr, PRECISION: tl.constexpr,
    BR: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Weight and bias gradients of the first or the second layer, for a tile of the channels."""
    C = C8 * 8
    c, r = tl.program_id(0) * BC + tl.arange(0, BC), tl.arange(0, BR)
    c_mask, r_mask = c < C, r < R
    sum_c, sum_r = tl.zeros((BC,), tl.float32), tl.zeros((BR,), tl.float32)
    acc = tl.zeros((BC, BR), tl.float32)
    first = tl.program_id(1) == 0
    for start in range(0, N, BN):
        n = start + tl.arange(0, BN)
        n_mask = n < N
        c_offsets, r_offsets = n[None, :] * C + c[:, None], n[:, None] * R + r[None, :]
        c_tile_mask, r_tile_mask = n_mask[None, :] & c_mask[:, None], n_mask[:, None] & r_mask[None, :]
        if first:
            a = tl.load(mean + c_offsets, mask=c_tile_mask, other=0.0)
            b = tl.load(dhidden + r_offsets, mask=r_tile_mask, other=0.0)
            sum_r += tl.sum(b, 0)
        else:
            a = tl.load(dz + c_offsets, mask=c_tile_mask, other=0.0)
            b = tl.load(hidden + r_offsets, mask=r_tile_mask, other=0.0)
            b = b * tl.sigmoid(b)
            sum_c += tl.sum(a, 1)
        acc += _dot(a, b, BF16, PRECISION)
    out_mask = c_mask[:, None] & r_mask[None, :]
    if first:
        tl.store(dw1 + r[None, :] * C + c[:, None], acc, mask=out_mask)
        if tl.program_id(0) == 0:
            tl.store(db1 + r, sum_r, mask=r_mask)
    else:
        tl.store(dw2 + c[:, None] * R + r[None, :], acc, mask=out_mask)
        tl.store(db2 + c, sum_c, mask=c_mask)
