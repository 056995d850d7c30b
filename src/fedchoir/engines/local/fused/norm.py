"""Batch normalisation and activation: moments, the forward pass, and the gradient, a kernel each.

A layer's statistics (mean, 1/deviation) are found once, by `moments` or on the way out of the convolution before. After
that everything is one pass over memory: ``y = act(norm(x))``, times a gate for each image and channel (excitation), or
times one for each image (stochastic depth) plus what a residual block came from.
"""

# mypy: disable-error-code="no-untyped-def,import-untyped"

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from fedchoir.engines.local.fused.common import (
    CHANNELS,
    LANES,
    NONE,
    activate,
    add_up,
    back,
    blocks,
    counters,
    hand_in,
    of_channels,
    per_channel,
    settle,
    shares_of,
)

MOMENT_TILE = {"BP": 128, "BC": CHANNELS, "num_warps": 4}
SUM_TILE = {"BP": 64, "BC": CHANNELS, "num_warps": 4}
TILE = {"BP": 64, "BC": CHANNELS, "num_warps": 4}
SIZES = ["M", "N", "C8", "HW", "track"]
IMAGE_TILE, IMAGE_WARPS = 64, 4  # positions, of one image or several


@triton.jit(do_not_specialize=SIZES)
def _moments(x, shares, arrived, mean, rstd, running_mean, running_var, seen, M, C8, eps, momentum, track, BP: tl.constexpr, BC: tl.constexpr):  # fmt: skip # noqa: E501
    C = C8 * 8
    block, share, count = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    c = block * BC + tl.arange(0, BC)
    known = c < C
    pivot = tl.load(running_mean + c, mask=known, other=0.0)
    one = tl.zeros((BP, BC), tl.float32)
    two = tl.zeros((BP, BC), tl.float32)
    for start in range(share * BP, M, count * BP):
        p = start + tl.arange(0, BP)
        live = (p < M)[:, None] & known[None, :]
        t = tl.load(x + p[:, None] * C + c[None, :], mask=live, other=0.0).to(tl.float32)
        t = tl.where(live, t - pivot[None, :], 0.0)
        one += t
        two += t * t
    if hand_in(tl.sum(one, 0), tl.sum(two, 0), shares, arrived, share, count, block, c, known, C):
        s1, s2 = add_up(shares, arrived, count, block, c, known, C, BC)
        settle(s1, s2, pivot, mean, rstd, running_mean, running_var, seen, M.to(tl.float32), eps, momentum, block, c, known, track)  # fmt: skip # noqa: E501


@triton.jit
def _affine(mean, rstd, weight, bias, c, known):
    """The norm of these channels as ``x·scale + shift``."""
    centre, r, w, b = of_channels(mean, rstd, weight, bias, c, known)
    scale = w * r
    return scale, b - centre * scale


@triton.jit
def _of_image(given, start, p, c, live, known, C, HW, GATE: tl.constexpr):
    """What is given for each image and channel: one row of it, where a tile's positions are all of one image."""
    if GATE == 2:
        rows = tl.load(given + (start // HW) * C + c, mask=known, other=0.0)[None, :]
    else:
        rows = tl.load(given + (p // HW)[:, None] * C + c[None, :], mask=live, other=0.0)
    return rows


@triton.jit(do_not_specialize=SIZES)
def _normalise(x, y, mean, rstd, weight, bias, gate, keep, residual, M, C8, HW, ACT: tl.constexpr, LATE: tl.constexpr, GATE: tl.constexpr, KEEP: tl.constexpr, RESIDUAL: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):  # fmt: skip # noqa: E501
    C = C8 * 8
    start = tl.program_id(1) * BP
    p = start + tl.arange(0, BP)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    known = c < C
    live = (p < M)[:, None] & known[None, :]
    place = p[:, None] * C + c[None, :]
    scale, shift = _affine(mean, rstd, weight, bias, c, known)
    t = tl.load(x + place, mask=live, other=0.0).to(tl.float32)
    t = activate(t * scale[None, :] + shift[None, :], 0 if LATE else ACT)
    if GATE:
        t *= _of_image(gate, start, p, c, live, known, C, HW, GATE)
    if KEEP:
        t *= tl.load(keep + p // HW, mask=p < M, other=0.0)[:, None]
    if RESIDUAL:
        t += tl.load(residual + place, mask=live, other=0.0).to(tl.float32)
    if LATE:
        t = activate(t, ACT)
    tl.store(y + place, t.to(y.dtype.element_ty), mask=live)


@triton.jit
def _downhill(dy, x, centre, rstd, weight, bias, gate, through, keep, start, p, c, live, known, M, C, HW, ACT: tl.constexpr, GATE: tl.constexpr, KEEP: tl.constexpr):  # fmt: skip # noqa: E501
    """The gradient at the norm's output, and its normalised input; ``through`` is what comes back through the gate."""
    place = p[:, None] * C + c[None, :]
    d = tl.load(dy + place, mask=live, other=0.0).to(tl.float32)
    unit = tl.load(x + place, mask=live, other=0.0).to(tl.float32) * rstd[None, :] - (centre * rstd)[None, :]
    if GATE:
        d *= _of_image(gate, start, p, c, live, known, C, HW, GATE)
        d += _of_image(through, start, p, c, live, known, C, HW, GATE)
    if KEEP:
        d *= tl.load(keep + p // HW, mask=p < M, other=0.0)[:, None]
    d = back(d, unit * weight[None, :] + bias[None, :], ACT)
    return tl.where(live, d, 0.0), unit


@triton.jit(do_not_specialize=SIZES)
def _sums(dy, x, shares, arrived, mean, rstd, weight, bias, gate, through, keep, y, dearly, dweight, dbias, M, C8, HW, ACT: tl.constexpr, LATE: tl.constexpr, GATE: tl.constexpr, KEEP: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):  # fmt: skip # noqa: E501
    C = C8 * 8
    block, share, count = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    c = block * BC + tl.arange(0, BC)
    known = c < C
    centre, r, w, b = of_channels(mean, rstd, weight, bias, c, known)
    one = tl.zeros((BP, BC), tl.float32)
    two = tl.zeros((BP, BC), tl.float32)
    for start in range(share * BP, M, count * BP):
        p = start + tl.arange(0, BP)
        live = (p < M)[:, None] & known[None, :]
        d, unit = _downhill(
            dy, x, centre, r, w, b, gate, through, keep, start, p, c, live, known, M, C, HW, ACT, GATE, KEEP
        )
        if LATE:
            place = p[:, None] * C + c[None, :]
            d = tl.where(tl.load(y + place, mask=live, other=0.0) > 0.0, d, 0.0)
            tl.store(dearly + place, d.to(dearly.dtype.element_ty), mask=live)
        one += d
        two += d * unit
    if hand_in(tl.sum(one, 0), tl.sum(two, 0), shares, arrived, share, count, block, c, known, C):
        s1, s2 = add_up(shares, arrived, count, block, c, known, C, BC)
        tl.store(dbias + c, s1, mask=known)
        tl.store(dweight + c, s2, mask=known)


@triton.jit(do_not_specialize=SIZES)
def _gradient(dy, x, dx, mean, rstd, weight, bias, gate, through, keep, dweight, dbias, M, C8, HW, ACT: tl.constexpr, GATE: tl.constexpr, KEEP: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):  # fmt: skip # noqa: E501
    C = C8 * 8
    start = tl.program_id(1) * BP
    p = start + tl.arange(0, BP)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    known = c < C
    live = (p < M)[:, None] & known[None, :]
    centre, r, w, b = of_channels(mean, rstd, weight, bias, c, known)
    n = M.to(tl.float32)
    level, tilt = tl.load(dbias + c, mask=known, other=0.0) / n, tl.load(dweight + c, mask=known, other=0.0) / n
    d, unit = _downhill(
        dy, x, centre, r, w, b, gate, through, keep, start, p, c, live, known, M, C, HW, ACT, GATE, KEEP
    )
    d = (d - level[None, :] - unit * tilt[None, :]) * (w * r)[None, :]
    tl.store(dx + p[:, None] * C + c[None, :], d.to(dx.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=SIZES)
def _image_sums(x, dy, out, mean, rstd, weight, bias, gate, N, C8, HW, ACT: tl.constexpr, BACK: tl.constexpr, BI: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):  # fmt: skip # noqa: E501
    """Over the positions of each image: the mean of ``act(norm(x))``; or, on the way back, its product with ``dy``, and
    from there through the gate's sigmoid."""
    C = C8 * 8
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    i = tl.program_id(1) * BI + tl.arange(0, BI)
    known = c < C
    scale, shift = _affine(mean, rstd, weight, bias, c, known)
    total = tl.zeros((BI, BP, BC), tl.float32)
    for start in range(0, HW, BP):
        h = start + tl.arange(0, BP)
        live = (i < N)[:, None, None] & (h < HW)[None, :, None] & known[None, None, :]
        place = (i * HW)[:, None, None] * C + h[None, :, None] * C + c[None, None, :]
        t = tl.load(x + place, mask=live, other=0.0).to(tl.float32)
        t = activate(t * scale[None, None, :] + shift[None, None, :], ACT)
        if BACK:
            t *= tl.load(dy + place, mask=live, other=0.0).to(tl.float32)
        total += tl.where(live, t, 0.0)
    s = tl.sum(total, 1)
    cell = i[:, None] * C + c[None, :]
    there = (i < N)[:, None] & known[None, :]
    if BACK:
        g = tl.load(gate + cell, mask=there, other=0.0)
        s *= g * (1.0 - g)
    else:
        s /= HW
    tl.store(out + cell, s, mask=there)


@dataclass(frozen=True)
class Norm:
    """A layer's statistics on one batch, with its weights, and the activation that follows."""

    act: int
    mean: Tensor
    rstd: Tensor
    weight: Tensor
    bias: Tensor

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.mean, self.rstd, self.weight, self.bias


def room_for_sums(x: Tensor, tiles: int) -> tuple[Tensor, int]:
    """A place for the shares of two sums, and their number."""
    count = shares_of(tiles, x.shape[1])
    return per_channel(x, 2 * count), count


def sizes(x: Tensor) -> tuple[int, int, int]:
    """Positions, channels in eights, positions of an image."""
    n, c, h, w = x.shape
    return n * h * w, c // LANES, h * w


def _kind(gate: Tensor | None, hw: int, tile: dict[str, int]) -> int:
    """0: no gate; 2: one row of it for each tile; 1: a row for each position."""
    return 0 if gate is None else 2 if hw % tile["BP"] == 0 else 1


def moments(x: Tensor, layer: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Mean and 1/deviation of each channel; the layer's running statistics move if it tracks them."""
    (m, c8, _), (mean, rstd) = sizes(x), per_channel(x, 2)
    shares, count = room_for_sums(x, triton.cdiv(m, MOMENT_TILE["BP"]))
    _moments[blocks(x.shape[1]), count](
        x, shares, counters(x.device), mean, rstd, layer.running_mean, layer.running_var, layer.num_batches_tracked,
        m, c8, layer.eps, layer.momentum, int(layer.track_running_stats), **MOMENT_TILE,
    )  # fmt: skip
    return mean, rstd


def normalise(
    x: Tensor, norm: Norm, gate: Tensor | None = None, keep: Tensor | None = None, residual: Tensor | None = None,
    late: bool = False,
) -> Tensor:  # fmt: skip
    """``late``: the activation comes after the residual."""
    (m, c8, hw), y = sizes(x), torch.empty_like(x)
    _normalise[blocks(x.shape[1]), triton.cdiv(m, TILE["BP"])](
        x, y, *norm.tensors(), *(x if t is None else t for t in (gate, keep, residual)), m, c8, hw,
        ACT=norm.act, LATE=late, GATE=_kind(gate, hw, TILE), KEEP=keep is not None, RESIDUAL=residual is not None,
        **TILE,
    )  # fmt: skip
    return y


def gradient(
    dy: Tensor, x: Tensor, norm: Norm, gate: Tensor | None = None, through: Tensor | None = None,
    keep: Tensor | None = None, sums: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Of the input, the weight and the bias; ``sums`` are the last two, where the kernel before has found them."""
    (m, c8, hw), dx = sizes(x), torch.empty_like(x)
    extra = tuple(x if t is None else t for t in (gate, through, keep))
    flags = {"ACT": norm.act, "KEEP": keep is not None}
    dweight, dbias = sums or per_channel(x, 2)
    if sums is None:
        shares, count = room_for_sums(x, triton.cdiv(m, SUM_TILE["BP"]))
        _sums[blocks(x.shape[1]), count](
            dy, x, shares, counters(x.device), *norm.tensors(), *extra, x, x, dweight, dbias, m, c8, hw,
            LATE=False, GATE=_kind(gate, hw, SUM_TILE), **flags, **SUM_TILE,
        )  # fmt: skip
    _gradient[blocks(x.shape[1]), triton.cdiv(m, TILE["BP"])](
        dy, x, dx, *norm.tensors(), *extra, dweight, dbias, m, c8, hw, GATE=_kind(gate, hw, TILE), **flags, **TILE
    )
    return dx, dweight, dbias


def late_gradient(dy: Tensor, y: Tensor, x: Tensor, norm: Norm) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of the residual, the input, the weight and the bias, where ``y = relu(norm(x) + residual)``."""
    (m, c8, hw), dearly, (dweight, dbias) = sizes(x), torch.empty_like(x), per_channel(x, 2)
    shares, count = room_for_sums(x, triton.cdiv(m, SUM_TILE["BP"]))
    _sums[blocks(x.shape[1]), count](
        dy, x, shares, counters(x.device), *norm.tensors(), x, x, x, y, dearly, dweight, dbias, m, c8, hw,
        ACT=NONE, LATE=True, GATE=0, KEEP=False, **SUM_TILE,
    )  # fmt: skip
    return dearly, *gradient(dearly, x, replace(norm, act=NONE), sums=(dweight, dbias))


def image_sums(x: Tensor, norm: Norm, dy: Tensor | None = None, gate: Tensor | None = None) -> Tensor:
    """N×C: the mean of ``act(norm(x))`` over each image; or with ``dy``, the gradient before the gate's sigmoid."""
    (n, c, h, w), out = x.shape, torch.empty(x.shape[:2], device=x.device, dtype=torch.float32)
    positions = min(IMAGE_TILE, triton.next_power_of_2(h * w))
    at_once = IMAGE_TILE // positions
    _image_sums[blocks(c), triton.cdiv(n, at_once)](
        x, x if dy is None else dy, out, *norm.tensors(), x if gate is None else gate, n, c // LANES, h * w,
        ACT=norm.act, BACK=dy is not None, BI=at_once, BP=positions, BC=CHANNELS, num_warps=IMAGE_WARPS,
    )  # fmt: skip
    return out
