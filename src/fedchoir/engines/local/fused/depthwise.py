"""Depthwise convolution: the forward pass and both gradients, each with the sums that the norm beside it needs.

A thread works on neighbouring columns at once, ``G`` of them, so that what it loads serves several outputs. Filters are
laid out as images are, channels last. The forward pass ends in the moments of its output. The gradient of the input
goes on through the activation before, and ends in the sums for that layer's norm.
"""

# Triton's dialect adds tuples, and unpacks none; it counts with names that Python would not need.
# ruff: noqa: RUF005, B007, SIM102, SIM108

# mypy: disable-error-code="no-untyped-def,import-untyped,assignment,var-annotated"

from typing import TypeGuard

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from fedchoir.engines.local.fused.common import (
    CHANNELS,
    LANES,
    add_up,
    back,
    blocks,
    counters,
    empty,
    hand_in,
    of_channels,
    per_channel,
    settle,
    shares_of,
)  # fmt: skip
from fedchoir.engines.local.fused.norm import Norm, room_for_sums

FORWARD_TILE = {"G": 8, "BP": 16, "BC": CHANNELS, "num_warps": 4}
INPUT_TILE = {"G": 4, "BP": 16, "BC": CHANNELS, "num_warps": 4}
FILTER_TILE = {"G": 8, "BP": 8, "BC": CHANNELS, "num_warps": 4}
FILTERS = (3, 5)
SIZES = ["N", "C8", "learns", "track"]


@triton.jit
def _zeros(BP: tl.constexpr, BC: tl.constexpr, COUNT: tl.constexpr):
    tiles = ()
    for k in tl.static_range(COUNT):
        tiles = tiles + (tl.zeros((BP, BC), tl.float32),)
    return tiles


@triton.jit
def _row(w, known, C, COUNT: tl.constexpr):
    """So many taps one after the other, of a tile's channels."""
    taps = ()
    for j in tl.static_range(COUNT):
        taps = taps + (tl.load(w + j * C, mask=known, other=0.0).to(tl.float32),)
    return taps


@triton.jit(do_not_specialize=SIZES)
def _forward(x, w, y, shares, arrived, mean, rstd, running_mean, running_var, seen, N, C8, eps, momentum, learns, track, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, GROUPS: tl.constexpr, K: tl.constexpr, S: tl.constexpr, P: tl.constexpr, G: tl.constexpr, RAGGED: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):  # fmt: skip # noqa: E501
    C = C8 * 8
    block, share, count = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    c = block * BC + tl.arange(0, BC)
    known = c < C
    if K == 3:
        filters = _row(w + c, known, C, K * K)
    one = tl.zeros((BP, BC), tl.float32)
    two = tl.zeros((BP, BC), tl.float32)
    for start in range(share * BP, N * HO * GROUPS, count * BP):
        p = start + tl.arange(0, BP)
        live = p < N * HO * GROUPS
        line = p // GROUPS
        left, row, image = (p % GROUPS) * G, line % HO, line // HO
        total = _zeros(BP, BC, G)
        for i in tl.static_range(K):
            if i - P < H and (HO - 1) * S + i - P >= 0:
                h = row * S + (i - P)
                high = live & (h >= 0) & (h < H)
                place = (((image * H + h) * W + left * S - P) * C)[:, None] + c[None, :]
                if K == 3:
                    taps = filters[i * K : i * K + K]
                else:
                    taps = _row(w + i * K * C + c, known, C, K)
                for j in tl.static_range((G - 1) * S + K):
                    if j - P < W and (GROUPS - 1) * G * S + j - P >= 0:
                        v = left * S + (j - P)
                        inside = high & (v >= 0) & (v < W)
                        pixel = tl.load(x + place + j * C, mask=inside[:, None] & known[None, :], other=0.0)
                        pixel = pixel.to(tl.float32)
                        new = ()
                        for g in tl.static_range(G):
                            if j - g * S >= 0 and j - g * S < K:
                                new = new + (total[g] + pixel * taps[j - g * S][None, :],)
                            else:
                                new = new + (total[g],)
                        total = new
        goal = ((line * WO + left) * C)[:, None] + c[None, :]
        for g in tl.static_range(G):
            there = (live & (left + g < WO))[:, None] & known[None, :]
            tl.store(y + goal + g * C, total[g].to(y.dtype.element_ty), mask=there)
            t = tl.where(there, total[g], 0.0) if RAGGED else total[g]
            one += t
            two += t * t
    if learns != 0:
        if hand_in(tl.sum(one, 0), tl.sum(two, 0), shares, arrived, share, count, block, c, known, C):
            s1, s2 = add_up(shares, arrived, count, block, c, known, C, BC)
            settle(s1, s2, 0.0, mean, rstd, running_mean, running_var, seen, (N * HO * WO).to(tl.float32), eps, momentum, block, c, known, track)  # fmt: skip # noqa: E501


@triton.jit(do_not_specialize=SIZES)
def _input_gradient(dy, w, u, dh, shares, arrived, mean, rstd, weight, bias, dweight, dbias, N, C8, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, ACT: tl.constexpr, K: tl.constexpr, S: tl.constexpr, P: tl.constexpr, G: tl.constexpr, RAGGED: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):  # fmt: skip # noqa: E501
    """S rows and G columns of the input at once: which taps reach which of them is then known beforehand."""
    C = C8 * 8
    block, share, count = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    c = block * BC + tl.arange(0, BC)
    known = c < C
    centre, r, scale, b = of_channels(mean, rstd, weight, bias, c, known)
    if K == 3:
        filters = _row(w + c, known, C, K * K)
    one = tl.zeros((BP, BC), tl.float32)
    two = tl.zeros((BP, BC), tl.float32)
    FIRST: tl.constexpr = -((K - 1 - P) // S)  # the columns of dy, counted from left/S, that reach the group
    LAST: tl.constexpr = (G - 1 + P) // S
    for start in range(share * BP, N * ROWS * GROUPS, count * BP):
        p = start + tl.arange(0, BP)
        live = p < N * ROWS * GROUPS
        line = p // GROUPS
        left, top, image = (p % GROUPS) * G, (line % ROWS) * S, line // ROWS
        for k in tl.static_range(S):
            goal = (((image * H + top + k) * W + left) * C)[:, None] + c[None, :]
            inputs = ()  # asked for early: they arrive while the convolution is computed
            for g in tl.static_range(G):
                there = (live & (top + k < H) & (left + g < W))[:, None] & known[None, :]
                inputs = inputs + (tl.load(u + goal + g * C, mask=there, other=0.0),)
            total = _zeros(BP, BC, G)
            for i in tl.static_range(K):
                if (k + P - i) % S == 0 and (k + P - i) // S < HO and ROWS - 1 + (k + P - i) // S >= 0:
                    h = top // S + (k + P - i) // S
                    high = live & (h >= 0) & (h < HO)
                    place = (((image * HO + h) * WO + left // S) * C)[:, None] + c[None, :]
                    if K == 3:
                        taps = filters[i * K : i * K + K]
                    else:
                        taps = _row(w + i * K * C + c, known, C, K)
                    for o in tl.static_range(FIRST, LAST + 1):
                        if o < WO and (GROUPS - 1) * G // S + o >= 0:
                            v = left // S + o
                            inside = high & (v >= 0) & (v < WO)
                            d = tl.load(dy + place + o * C, mask=inside[:, None] & known[None, :], other=0.0)
                            d = d.to(tl.float32)
                            new = ()
                            for g in tl.static_range(G):
                                if g + P - o * S >= 0 and g + P - o * S < K:
                                    new = new + (total[g] + d * taps[g + P - o * S][None, :],)
                                else:
                                    new = new + (total[g],)
                            total = new
            for g in tl.static_range(G):
                there = (live & (top + k < H) & (left + g < W))[:, None] & known[None, :]
                unit = inputs[g].to(tl.float32) * r[None, :] - (centre * r)[None, :]
                t = back(total[g], unit * scale[None, :] + b[None, :], ACT)
                tl.store(dh + goal + g * C, t.to(dh.dtype.element_ty), mask=there)
                if RAGGED:
                    t = tl.where(there, t, 0.0)
                one += t
                two += t * unit
    if hand_in(tl.sum(one, 0), tl.sum(two, 0), shares, arrived, share, count, block, c, known, C):
        s1, s2 = add_up(shares, arrived, count, block, c, known, C, BC)
        tl.store(dbias + c, s1, mask=known)
        tl.store(dweight + c, s2, mask=known)


@triton.jit(do_not_specialize=SIZES)
def _weight_gradient(x, dy, shares, arrived, dw, N, C8, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, GROUPS: tl.constexpr, K: tl.constexpr, S: tl.constexpr, P: tl.constexpr, G: tl.constexpr, TAPS: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):  # fmt: skip # noqa: E501
    """Some rows of taps (TAPS of K), for a tile of channels and a share of the positions."""
    C = C8 * 8
    block, part, share, count = tl.program_id(0), tl.program_id(1), tl.program_id(2), tl.num_programs(2)
    c = block * BC + tl.arange(0, BC)
    known = c < C
    sums = _zeros(BP, BC, TAPS * K)
    for start in range(share * BP, N * HO * GROUPS, count * BP):
        p = start + tl.arange(0, BP)
        live = p < N * HO * GROUPS
        line = p // GROUPS
        left, row, image = (p % GROUPS) * G, line % HO, line // HO
        goal = ((line * WO + left) * C)[:, None] + c[None, :]
        slopes = ()
        for g in tl.static_range(G):
            there = (live & (left + g < WO))[:, None] & known[None, :]
            slopes = slopes + (tl.load(dy + goal + g * C, mask=there, other=0.0).to(tl.float32),)
        for i in tl.static_range(TAPS):
            h = row * S + (part * TAPS + i - P)
            high = live & (h >= 0) & (h < H)
            place = (((image * H + h) * W + left * S - P) * C)[:, None] + c[None, :]
            for o in tl.static_range((G - 1) * S + K):
                if o - P < W and (GROUPS - 1) * G * S + o - P >= 0:
                    v = left * S + (o - P)
                    inside = high & (v >= 0) & (v < W)
                    pixel = tl.load(x + place + o * C, mask=inside[:, None] & known[None, :], other=0.0)
                    pixel = pixel.to(tl.float32)
                    new = ()
                    for j in tl.static_range(TAPS * K):
                        total = sums[j]
                        for g in tl.static_range(G):
                            if i * K + o - g * S == j and o - g * S >= 0 and o - g * S < K:
                                total += pixel * slopes[g]
                        new = new + (total,)
                    sums = new
    first = part * TAPS * K
    for j in tl.static_range(TAPS * K):
        tl.store(shares + (share * K * K + first + j) * C + c, tl.sum(sums[j], 0), mask=known)
    tl.debug_barrier()
    counter = arrived + block * K + part
    if tl.atomic_add(counter, 1) == count - 1:
        for i in range(TAPS):
            added = ()
            for j in tl.static_range(K):
                added = added + (tl.zeros((BC,), tl.float32),)
            for begin in range(0, count, 64):
                s = begin + tl.arange(0, 64)
                there = (s < count)[:, None] & known[None, :]
                place = shares + (s[:, None] * K * K + first + i * K) * C + c[None, :]
                new = ()
                for j in tl.static_range(K):
                    t = tl.load(place + j * C, mask=there, other=0.0, cache_modifier=".cg")
                    new = new + (added[j] + tl.sum(t, 0),)
                added = new
            for j in tl.static_range(K):
                tl.store(dw + (first + i * K + j) * C + c, added[j], mask=known)
        tl.store(counter, 0)


def channels_fastest(weight: Tensor) -> Tensor:
    """The same C×1×k×k filters, in memory as k×k×1×C: so neither they nor their gradients need to be laid out anew."""
    return weight.permute(2, 3, 1, 0).contiguous().permute(3, 2, 0, 1)


def _taps(weight: Tensor) -> Tensor:
    """C×1×k×k filters as k²×C; no copy, if they lie in memory as `channels_fastest` leaves them."""
    return weight.flatten(1).t().contiguous()


def _fitted(tile: dict[str, int], width: int) -> dict[str, int]:
    """No more columns at once than there are."""
    return tile | {"G": min(tile["G"], triton.next_power_of_2(width))}


def convolve(x: Tensor, filters: Tensor, conv: nn.Conv2d, following: nn.BatchNorm2d) -> tuple[Tensor, Tensor, Tensor]:
    """The convolution of ``x``, and its moments for the norm that follows, if that is learning."""
    (n, c, h, w), k, s, p = x.shape, conv.kernel_size[0], conv.stride[0], int(conv.padding[0])
    ho, wo = (h + 2 * p - k) // s + 1, (w + 2 * p - k) // s + 1
    y, (mean, rstd) = empty((n, c, ho, wo), x), per_channel(x, 2)
    tile = _fitted(FORWARD_TILE, wo)
    groups = triton.cdiv(wo, tile["G"])
    shares, count = room_for_sums(y, triton.cdiv(n * ho * groups, tile["BP"]))
    _forward[blocks(c), count](
        x, _taps(filters), y, shares, counters(x.device), mean, rstd,
        following.running_mean, following.running_var, following.num_batches_tracked,
        n, c // LANES, following.eps, following.momentum, int(following.training), int(following.track_running_stats),
        H=h, W=w, HO=ho, WO=wo, GROUPS=groups, K=k, S=s, P=p, RAGGED=wo % tile["G"] > 0, **tile,
    )  # fmt: skip
    return y, mean, rstd


def input_gradient(
    dy: Tensor, filters: Tensor, conv: nn.Conv2d, u: Tensor, norm: Norm
) -> tuple[Tensor, Tensor, Tensor]:
    """Through the convolution and the activation before it, and the sums over it that its norm's gradient needs."""
    (n, c, ho, wo), (h, w) = dy.shape, u.shape[2:]
    k, s, p = conv.kernel_size[0], conv.stride[0], int(conv.padding[0])
    dh, (dweight, dbias) = torch.empty_like(u), per_channel(u, 2)
    tile = _fitted(INPUT_TILE, max(w, s)) | ({"maxnreg": 128} if k == 3 else {})  # or one program less would fit
    rows, groups = triton.cdiv(h, s), triton.cdiv(w, tile["G"])
    shares, count = room_for_sums(u, triton.cdiv(n * rows * groups, tile["BP"]))
    _input_gradient[blocks(c), count](
        dy, _taps(filters), u, dh, shares, counters(u.device), *norm.tensors(), dweight, dbias,
        n, c // LANES, H=h, W=w, HO=ho, WO=wo, ROWS=rows, GROUPS=groups,
        ACT=norm.act, K=k, S=s, P=p, RAGGED=w % tile["G"] > 0 or h % s > 0, **tile,
    )  # fmt: skip
    return dh, dweight, dbias


def weight_gradient(x: Tensor, dy: Tensor, conv: nn.Conv2d) -> Tensor:
    (n, c, h, w), (ho, wo) = x.shape, dy.shape[2:]
    k, s, p = conv.kernel_size[0], conv.stride[0], int(conv.padding[0])
    tile = _fitted(FILTER_TILE, wo)
    groups = triton.cdiv(wo, tile["G"])
    taps = k if k == 3 else 1
    parts = k // taps
    count = shares_of(triton.cdiv(n * ho * groups, tile["BP"]), parts * c)
    shares, dw = per_channel(x, count * k * k), per_channel(x, k * k)
    _weight_gradient[blocks(c), parts, count](
        x, dy, shares, counters(x.device), dw, n, c // LANES,
        H=h, W=w, HO=ho, WO=wo, GROUPS=groups, K=k, S=s, P=p, TAPS=taps, **tile,
    )  # fmt: skip
    return dw.t().reshape(c, 1, k, k)


def is_depthwise(layer: nn.Module) -> TypeGuard[nn.Conv2d]:
    """One filter for each channel, square, without bias: what the kernels here can do."""
    if type(layer) is not nn.Conv2d or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return False
    alone = layer.groups == layer.in_channels == layer.out_channels > 1 and layer.bias is None
    square = len(set(layer.kernel_size)) == len(set(layer.stride)) == len(set(layer.padding)) == 1
    return alone and square and layer.dilation == (1, 1) and layer.kernel_size[0] in FILTERS
