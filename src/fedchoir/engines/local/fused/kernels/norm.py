"""Kernels of batch normalization: the statistics, the forward pass and the gradients."""

# mypy: disable-error-code="no-untyped-def,import-untyped"

import triton
import triton.language as tl

from fedchoir.engines.local.fused.kernels.common import (
    activate,
    activation_backward,
    load_norm,
    reduce_partials,
    store_partials,
    store_statistics,
)

SIZES = ["M", "N", "C8", "HW", "track_stats"]


@triton.jit(do_not_specialize=SIZES)
def moments(
    x, partials, counters, mean, rstd, running_mean, running_var, num_batches, M, C8, eps, momentum, track_stats,
    BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    C = C8 * 8
    c_block, split, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    c = c_block * BC + tl.arange(0, BC)
    c_mask = c < C
    pivot = tl.load(running_mean + c, mask=c_mask, other=0.0)
    acc1, acc2 = tl.zeros((BP, BC), tl.float32), tl.zeros((BP, BC), tl.float32)
    for start in range(split * BP, M, splits * BP):
        p = start + tl.arange(0, BP)
        mask = (p < M)[:, None] & c_mask[None, :]
        t = tl.load(x + p[:, None] * C + c[None, :], mask=mask, other=0.0).to(tl.float32)
        t = tl.where(mask, t - pivot[None, :], 0.0)
        acc1 += t
        acc2 += t * t
    if store_partials(tl.sum(acc1, 0), tl.sum(acc2, 0), partials, counters, split, splits, c_block, c, c_mask, C):
        s1, s2 = reduce_partials(partials, counters, splits, c_block, c, c_mask, C, BC)
        store_statistics(
            s1, s2, pivot, mean, rstd, running_mean, running_var, num_batches, M.to(tl.float32), eps, momentum, c_block,
            c, c_mask, track_stats,
        )  # fmt: skip


@triton.jit
def _affine(mean, rstd, weight, bias, c, c_mask):
    """The norm of these channels as ``x·scale + shift``."""
    mu, r, w, b = load_norm(mean, rstd, weight, bias, c, c_mask)
    scale = w * r
    return scale, b - mu * scale


@triton.jit
def _load_per_image(values, start, p, c, mask, c_mask, C, HW, GATE: tl.constexpr):
    """One value per image and channel for each position: a single row if the whole tile is of one image (GATE 2)."""
    if GATE == 2:
        rows = tl.load(values + (start // HW) * C + c, mask=c_mask, other=0.0)[None, :]
    else:
        rows = tl.load(values + (p // HW)[:, None] * C + c[None, :], mask=mask, other=0.0)
    return rows


@triton.jit(do_not_specialize=SIZES)
def normalise(
    x, y, mean, rstd, weight, bias, gate, image_scale, residual, M, C8, HW, ACT: tl.constexpr, ADD_FIRST: tl.constexpr,
    GATE: tl.constexpr, IMAGE_SCALE: tl.constexpr, RESIDUAL: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    C = C8 * 8
    start = tl.program_id(1) * BP
    p = start + tl.arange(0, BP)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    c_mask = c < C
    mask = (p < M)[:, None] & c_mask[None, :]
    offsets = p[:, None] * C + c[None, :]
    scale, shift = _affine(mean, rstd, weight, bias, c, c_mask)
    t = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)
    t = activate(t * scale[None, :] + shift[None, :], 0 if ADD_FIRST else ACT)
    if GATE:
        t *= _load_per_image(gate, start, p, c, mask, c_mask, C, HW, GATE)
    if IMAGE_SCALE:
        t *= tl.load(image_scale + p // HW, mask=p < M, other=0.0)[:, None]
    if RESIDUAL:
        t += tl.load(residual + offsets, mask=mask, other=0.0).to(tl.float32)
    if ADD_FIRST:
        t = activate(t, ACT)
    tl.store(y + offsets, t.to(y.dtype.element_ty), mask=mask)


@triton.jit
def _norm_output_gradient(
    dy, x, mu, rstd, weight, bias, gate, dpool, image_scale, start, p, c, mask, c_mask, M, C, HW, ACT: tl.constexpr,
    GATE: tl.constexpr, IMAGE_SCALE: tl.constexpr,
):  # fmt: skip
    """The gradient at the norm's output and the normalized input. ``dpool``: the gradient by way of the gate."""
    offsets = p[:, None] * C + c[None, :]
    d = tl.load(dy + offsets, mask=mask, other=0.0).to(tl.float32)
    xhat = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32) * rstd[None, :] - (mu * rstd)[None, :]
    if GATE:
        d *= _load_per_image(gate, start, p, c, mask, c_mask, C, HW, GATE)
        d += _load_per_image(dpool, start, p, c, mask, c_mask, C, HW, GATE)
    if IMAGE_SCALE:
        d *= tl.load(image_scale + p // HW, mask=p < M, other=0.0)[:, None]
    d = activation_backward(d, xhat * weight[None, :] + bias[None, :], ACT)
    return tl.where(mask, d, 0.0), xhat


@triton.jit(do_not_specialize=SIZES)
def sums(
    dy, x, partials, counters, mean, rstd, weight, bias, gate, dpool, image_scale, y, dsum, dweight, dbias, M, C8, HW,
    ACT: tl.constexpr, ADD_FIRST: tl.constexpr, GATE: tl.constexpr, IMAGE_SCALE: tl.constexpr, BP: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    """The gradients of weight and bias, which the input's gradient needs."""
    C = C8 * 8
    c_block, split, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    c = c_block * BC + tl.arange(0, BC)
    c_mask = c < C
    mu, r, w, b = load_norm(mean, rstd, weight, bias, c, c_mask)
    acc1, acc2 = tl.zeros((BP, BC), tl.float32), tl.zeros((BP, BC), tl.float32)
    for start in range(split * BP, M, splits * BP):
        p = start + tl.arange(0, BP)
        mask = (p < M)[:, None] & c_mask[None, :]
        d, xhat = _norm_output_gradient(
            dy, x, mu, r, w, b, gate, dpool, image_scale, start, p, c, mask, c_mask, M, C, HW, ACT, GATE, IMAGE_SCALE
        )
        if ADD_FIRST:
            offsets = p[:, None] * C + c[None, :]
            d = tl.where(tl.load(y + offsets, mask=mask, other=0.0) > 0.0, d, 0.0)
            tl.store(dsum + offsets, d.to(dsum.dtype.element_ty), mask=mask)
        acc1 += d
        acc2 += d * xhat
    if store_partials(tl.sum(acc1, 0), tl.sum(acc2, 0), partials, counters, split, splits, c_block, c, c_mask, C):
        s1, s2 = reduce_partials(partials, counters, splits, c_block, c, c_mask, C, BC)
        tl.store(dbias + c, s1, mask=c_mask)
        tl.store(dweight + c, s2, mask=c_mask)


@triton.jit(do_not_specialize=SIZES)
def gradient(
    dy, x, dx, mean, rstd, weight, bias, gate, dpool, image_scale, dweight, dbias, M, C8, HW, ACT: tl.constexpr,
    GATE: tl.constexpr, IMAGE_SCALE: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    C = C8 * 8
    start = tl.program_id(1) * BP
    p = start + tl.arange(0, BP)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    c_mask = c < C
    mask = (p < M)[:, None] & c_mask[None, :]
    mu, r, w, b = load_norm(mean, rstd, weight, bias, c, c_mask)
    n = M.to(tl.float32)
    mean_d = tl.load(dbias + c, mask=c_mask, other=0.0) / n
    mean_dxhat = tl.load(dweight + c, mask=c_mask, other=0.0) / n
    d, xhat = _norm_output_gradient(
        dy, x, mu, r, w, b, gate, dpool, image_scale, start, p, c, mask, c_mask, M, C, HW, ACT, GATE, IMAGE_SCALE
    )
    d = (d - mean_d[None, :] - xhat * mean_dxhat[None, :]) * (w * r)[None, :]
    tl.store(dx + p[:, None] * C + c[None, :], d.to(dx.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=SIZES)
def image_sums(
    x, dy, out, mean, rstd, weight, bias, gate, N, C8, HW, ACT: tl.constexpr, BACKWARD: tl.constexpr, BI: tl.constexpr,
    BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Per image and channel: the mean of ``act(norm(x))``, or (BACKWARD) the gradient before the gate's sigmoid."""
    C = C8 * 8
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    i = tl.program_id(1) * BI + tl.arange(0, BI)
    c_mask = c < C
    scale, shift = _affine(mean, rstd, weight, bias, c, c_mask)
    total = tl.zeros((BI, BP, BC), tl.float32)
    for start in range(0, HW, BP):
        hw = start + tl.arange(0, BP)
        mask = (i < N)[:, None, None] & (hw < HW)[None, :, None] & c_mask[None, None, :]
        offsets = (i * HW)[:, None, None] * C + hw[None, :, None] * C + c[None, None, :]
        t = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)
        t = activate(t * scale[None, None, :] + shift[None, None, :], ACT)
        if BACKWARD:
            t *= tl.load(dy + offsets, mask=mask, other=0.0).to(tl.float32)
        total += tl.where(mask, t, 0.0)
    s = tl.sum(total, 1)
    out_offsets = i[:, None] * C + c[None, :]
    out_mask = (i < N)[:, None] & c_mask[None, :]
    if BACKWARD:
        g = tl.load(gate + out_offsets, mask=out_mask, other=0.0)
        s *= g * (1.0 - g)
    else:
        s /= HW
    tl.store(out + out_offsets, s, mask=out_mask)
