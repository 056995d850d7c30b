"""Kernels of depthwise convolution: the forward pass and both gradients.

A thread computes ``G`` neighboring columns, so that each value it loads serves several outputs.
"""

# Triton adds tuples and cannot unpack them; its loops need names that Python would not.
# ruff: noqa: RUF005, B007, SIM102
# mypy: disable-error-code="no-untyped-def,import-untyped,assignment,var-annotated"

import triton
import triton.language as tl

from fedchoir.engines.local.fused.kernels.common import (
    activation_backward,
    load_norm,
    reduce_partials,
    store_partials,
    store_statistics,
)

SIZES = ["N", "C8", "training", "track_stats"]


@triton.jit
def _zeros(BP: tl.constexpr, BC: tl.constexpr, COUNT: tl.constexpr):
    tiles = ()
    for k in tl.static_range(COUNT):
        tiles = tiles + (tl.zeros((BP, BC), tl.float32),)
    return tiles


@triton.jit
def _load_taps(w, c_mask, C, COUNT: tl.constexpr):
    """COUNT consecutive taps of a tile's channels."""
    taps = ()
    for j in tl.static_range(COUNT):
        taps = taps + (tl.load(w + j * C, mask=c_mask, other=0.0).to(tl.float32),)
    return taps


@triton.jit(do_not_specialize=SIZES)
def forward(
    x, w, y, partials, counters, mean, rstd, running_mean, running_var, num_batches, N, C8, eps, momentum, training,
    track_stats, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, GROUPS: tl.constexpr,
    K: tl.constexpr, S: tl.constexpr, P: tl.constexpr, G: tl.constexpr, RAGGED: tl.constexpr, BP: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    C = C8 * 8
    c_block, split, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    c = c_block * BC + tl.arange(0, BC)
    c_mask = c < C
    if K == 3:
        filters = _load_taps(w + c, c_mask, C, K * K)
    acc1, acc2 = tl.zeros((BP, BC), tl.float32), tl.zeros((BP, BC), tl.float32)
    for start in range(split * BP, N * HO * GROUPS, splits * BP):
        p = start + tl.arange(0, BP)
        p_mask = p < N * HO * GROUPS
        image_row = p // GROUPS
        col, row, image = (p % GROUPS) * G, image_row % HO, image_row // HO
        acc = _zeros(BP, BC, G)
        for i in tl.static_range(K):
            if i - P < H and (HO - 1) * S + i - P >= 0:
                h = row * S + (i - P)
                row_mask = p_mask & (h >= 0) & (h < H)
                offsets = (((image * H + h) * W + col * S - P) * C)[:, None] + c[None, :]
                taps = filters[i * K : i * K + K] if K == 3 else _load_taps(w + i * K * C + c, c_mask, C, K)
                for j in tl.static_range((G - 1) * S + K):
                    if j - P < W and (GROUPS - 1) * G * S + j - P >= 0:
                        v = col * S + (j - P)
                        in_bounds = row_mask & (v >= 0) & (v < W)
                        pixel = tl.load(x + offsets + j * C, mask=in_bounds[:, None] & c_mask[None, :], other=0.0)
                        pixel = pixel.to(tl.float32)
                        updated = ()
                        for g in tl.static_range(G):
                            if j - g * S >= 0 and j - g * S < K:
                                updated = updated + (acc[g] + pixel * taps[j - g * S][None, :],)
                            else:
                                updated = updated + (acc[g],)
                        acc = updated
        out_offsets = ((image_row * WO + col) * C)[:, None] + c[None, :]
        for g in tl.static_range(G):
            out_mask = (p_mask & (col + g < WO))[:, None] & c_mask[None, :]
            tl.store(y + out_offsets + g * C, acc[g].to(y.dtype.element_ty), mask=out_mask)
            t = tl.where(out_mask, acc[g], 0.0) if RAGGED else acc[g]
            acc1 += t
            acc2 += t * t
    if training != 0:
        if store_partials(tl.sum(acc1, 0), tl.sum(acc2, 0), partials, counters, split, splits, c_block, c, c_mask, C):
            s1, s2 = reduce_partials(partials, counters, splits, c_block, c, c_mask, C, BC)
            store_statistics(
                s1, s2, 0.0, mean, rstd, running_mean, running_var, num_batches, (N * HO * WO).to(tl.float32), eps,
                momentum, c_block, c, c_mask, track_stats,
            )  # fmt: skip


@triton.jit(do_not_specialize=SIZES)
def input_gradient(
    dy, w, x, dh, partials, counters, mean, rstd, weight, bias, dweight, dbias, N, C8, H: tl.constexpr, W: tl.constexpr,
    HO: tl.constexpr, WO: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, ACT: tl.constexpr, K: tl.constexpr,
    S: tl.constexpr, P: tl.constexpr, G: tl.constexpr, RAGGED: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """S rows and G columns of the input at once, so that it is known at compile time which taps reach which."""
    C = C8 * 8
    c_block, split, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    c = c_block * BC + tl.arange(0, BC)
    c_mask = c < C
    mu, r, scale, b = load_norm(mean, rstd, weight, bias, c, c_mask)
    if K == 3:
        filters = _load_taps(w + c, c_mask, C, K * K)
    acc1, acc2 = tl.zeros((BP, BC), tl.float32), tl.zeros((BP, BC), tl.float32)
    FIRST: tl.constexpr = -((K - 1 - P) // S)  # the columns of dy, counted from col/S, that reach the group
    LAST: tl.constexpr = (G - 1 + P) // S
    for start in range(split * BP, N * ROWS * GROUPS, splits * BP):
        p = start + tl.arange(0, BP)
        p_mask = p < N * ROWS * GROUPS
        image_row = p // GROUPS
        col, row0, image = (p % GROUPS) * G, (image_row % ROWS) * S, image_row // ROWS
        for k in tl.static_range(S):
            out_offsets = (((image * H + row0 + k) * W + col) * C)[:, None] + c[None, :]
            inputs = ()  # loaded early, so that they arrive while the convolution is computed
            for g in tl.static_range(G):
                out_mask = (p_mask & (row0 + k < H) & (col + g < W))[:, None] & c_mask[None, :]
                inputs = inputs + (tl.load(x + out_offsets + g * C, mask=out_mask, other=0.0),)
            acc = _zeros(BP, BC, G)
            for i in tl.static_range(K):
                if (k + P - i) % S == 0 and (k + P - i) // S < HO and ROWS - 1 + (k + P - i) // S >= 0:
                    h = row0 // S + (k + P - i) // S
                    row_mask = p_mask & (h >= 0) & (h < HO)
                    offsets = (((image * HO + h) * WO + col // S) * C)[:, None] + c[None, :]
                    taps = filters[i * K : i * K + K] if K == 3 else _load_taps(w + i * K * C + c, c_mask, C, K)
                    for o in tl.static_range(FIRST, LAST + 1):
                        if o < WO and (GROUPS - 1) * G // S + o >= 0:
                            v = col // S + o
                            in_bounds = row_mask & (v >= 0) & (v < WO)
                            d = tl.load(dy + offsets + o * C, mask=in_bounds[:, None] & c_mask[None, :], other=0.0)
                            d = d.to(tl.float32)
                            updated = ()
                            for g in tl.static_range(G):
                                if g + P - o * S >= 0 and g + P - o * S < K:
                                    updated = updated + (acc[g] + d * taps[g + P - o * S][None, :],)
                                else:
                                    updated = updated + (acc[g],)
                            acc = updated
            for g in tl.static_range(G):
                out_mask = (p_mask & (row0 + k < H) & (col + g < W))[:, None] & c_mask[None, :]
                xhat = inputs[g].to(tl.float32) * r[None, :] - (mu * r)[None, :]
                t = activation_backward(acc[g], xhat * scale[None, :] + b[None, :], ACT)
                tl.store(dh + out_offsets + g * C, t.to(dh.dtype.element_ty), mask=out_mask)
                if RAGGED:
                    t = tl.where(out_mask, t, 0.0)
                acc1 += t
                acc2 += t * xhat
    if store_partials(tl.sum(acc1, 0), tl.sum(acc2, 0), partials, counters, split, splits, c_block, c, c_mask, C):
        s1, s2 = reduce_partials(partials, counters, splits, c_block, c, c_mask, C, BC)
        tl.store(dbias + c, s1, mask=c_mask)
        tl.store(dweight + c, s2, mask=c_mask)


@triton.jit(do_not_specialize=SIZES)
def weight_gradient(
    x, dy, partials, counters, dw, N, C8, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
    GROUPS: tl.constexpr, K: tl.constexpr, S: tl.constexpr, P: tl.constexpr, G: tl.constexpr, TAP_ROWS: tl.constexpr,
    BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """TAP_ROWS of the K rows of taps, for a tile of channels and a part of the positions."""
    C = C8 * 8
    c_block, tap_group, split, splits = tl.program_id(0), tl.program_id(1), tl.program_id(2), tl.num_programs(2)
    c = c_block * BC + tl.arange(0, BC)
    c_mask = c < C
    sums = _zeros(BP, BC, TAP_ROWS * K)
    for start in range(split * BP, N * HO * GROUPS, splits * BP):
        p = start + tl.arange(0, BP)
        p_mask = p < N * HO * GROUPS
        image_row = p // GROUPS
        col, row, image = (p % GROUPS) * G, image_row % HO, image_row // HO
        out_offsets = ((image_row * WO + col) * C)[:, None] + c[None, :]
        dys = ()
        for g in tl.static_range(G):
            out_mask = (p_mask & (col + g < WO))[:, None] & c_mask[None, :]
            dys = dys + (tl.load(dy + out_offsets + g * C, mask=out_mask, other=0.0).to(tl.float32),)
        for i in tl.static_range(TAP_ROWS):
            h = row * S + (tap_group * TAP_ROWS + i - P)
            row_mask = p_mask & (h >= 0) & (h < H)
            offsets = (((image * H + h) * W + col * S - P) * C)[:, None] + c[None, :]
            for o in tl.static_range((G - 1) * S + K):
                if o - P < W and (GROUPS - 1) * G * S + o - P >= 0:
                    v = col * S + (o - P)
                    in_bounds = row_mask & (v >= 0) & (v < W)
                    pixel = tl.load(x + offsets + o * C, mask=in_bounds[:, None] & c_mask[None, :], other=0.0)
                    pixel = pixel.to(tl.float32)
                    updated = ()
                    for j in tl.static_range(TAP_ROWS * K):
                        acc = sums[j]
                        for g in tl.static_range(G):
                            if i * K + o - g * S == j and o - g * S >= 0 and o - g * S < K:
                                acc += pixel * dys[g]
                        updated = updated + (acc,)
                    sums = updated
    first = tap_group * TAP_ROWS * K
    for j in tl.static_range(TAP_ROWS * K):
        tl.store(partials + (split * K * K + first + j) * C + c, tl.sum(sums[j], 0), mask=c_mask)
    tl.debug_barrier()
    counter = counters + c_block * K + tap_group
    if tl.atomic_add(counter, 1) == splits - 1:
        for i in range(TAP_ROWS):
            tap_sums = ()
            for j in tl.static_range(K):
                tap_sums = tap_sums + (tl.zeros((BC,), tl.float32),)
            for start in range(0, splits, 64):
                s = start + tl.arange(0, 64)
                s_mask = (s < splits)[:, None] & c_mask[None, :]
                ptr = partials + (s[:, None] * K * K + first + i * K) * C + c[None, :]
                updated = ()
                for j in tl.static_range(K):
                    t = tl.load(ptr + j * C, mask=s_mask, other=0.0, cache_modifier=".cg")
                    updated = updated + (tap_sums[j] + tl.sum(t, 0),)
                tap_sums = updated
            for j in tl.static_range(K):
                tl.store(dw + (first + i * K + j) * C + c, tap_sums[j], mask=c_mask)
        tl.store(counter, 0)
