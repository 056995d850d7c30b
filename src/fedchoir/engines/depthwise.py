"""Depthwise convolution in Triton, for channels-last images on a GPU: the forward pass and both gradients.

Positions and channels are tiled; every tap of the filter reads its neighbours again, from the cache. Filters are laid
out as images are, channels last, so that a thread reads the taps of its channels at once. The weights' gradient sums
over all positions: these are split into shares, which are added up at the end in a fixed order, so that the same input
gives the same bits. With TRITON_INTERPRET=1 the kernels run on a CPU, slowly: so they are tested.
"""

# Triton reads the annotations of its kernels, and has no types of its own.
# mypy: disable-error-code="no-untyped-def,import-untyped"

from typing import Any, TypeGuard

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.library import triton_op, wrap_triton

TILE = {"BP": 16, "BC": 32, "num_warps": 2}  # positions and channels that one program works on
GRADIENT_TILE = {"BP": 32, "BC": 32, "num_warps": 2}  # of the weights' gradient, which has up to five sums for each
PROGRAMS = 2112  # sixteen for each multiprocessor of a large GPU: into about so many shares a gradient is split
SIZES = (3, 5)  # of filters


@triton.jit
def _forward(x, w, y, N, H, W, C, HO, WO, K: tl.constexpr, S: tl.constexpr, P: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):  # fmt: skip # noqa: E501
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    live, known = p < N * HO * WO, c < C
    column, row, image = p % WO, (p // WO) % HO, p // (WO * HO)
    total = tl.zeros((BP, BC), tl.float32)
    for i in tl.static_range(K):
        for j in tl.static_range(K):
            h, v = row * S + i - P, column * S + j - P
            inside = live & (h >= 0) & (h < H) & (v >= 0) & (v < W)
            place = ((image * H + h) * W + v) * C
            pixel = tl.load(x + place[:, None] + c[None, :], mask=inside[:, None] & known[None, :], other=0.0)
            tap = tl.load(w + (i * K + j) * C + c, mask=known, other=0.0)
            total += pixel.to(tl.float32) * tap.to(tl.float32)[None, :]
    tl.store(y + (p * C)[:, None] + c[None, :], total.to(y.dtype.element_ty), mask=live[:, None] & known[None, :])


@triton.jit
def _input_gradient(dy, w, dx, N, H, W, C, HO, WO, K: tl.constexpr, S: tl.constexpr, P: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):  # fmt: skip # noqa: E501
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    live, known = p < N * H * W, c < C
    column, row, image = p % W, (p // W) % H, p // (W * H)
    total = tl.zeros((BP, BC), tl.float32)
    for i in tl.static_range(K):
        for j in tl.static_range(K):
            a, b = row + P - i, column + P - j
            h, v = a // S, b // S
            inside = live & (a >= 0) & (b >= 0) & (h < HO) & (v < WO)
            if S > 1:
                inside = inside & (a % S == 0) & (b % S == 0)
            place = ((image * HO + h) * WO + v) * C
            slope = tl.load(dy + place[:, None] + c[None, :], mask=inside[:, None] & known[None, :], other=0.0)
            tap = tl.load(w + (i * K + j) * C + c, mask=known, other=0.0)
            total += slope.to(tl.float32) * tap.to(tl.float32)[None, :]
    tl.store(dx + (p * C)[:, None] + c[None, :], total.to(dx.dtype.element_ty), mask=live[:, None] & known[None, :])


@triton.jit
def _weight_gradient(x, dy, out, N, H, W, C, HO, WO, SHARE: tl.constexpr, K: tl.constexpr, S: tl.constexpr, P: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):  # fmt: skip # noqa: E501
    """One program: a tile of channels, one row of taps (three or five), one share of the positions."""
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    i, share = tl.program_id(1), tl.program_id(2)
    known = c < C
    zero = tl.zeros((BP, BC), tl.float32)
    t0, t1, t2, t3, t4 = zero, zero, zero, zero, zero
    for start in range(0, SHARE, BP):
        p = share * SHARE + start + tl.arange(0, BP)
        column, row, image = p % WO, (p // WO) % HO, p // (WO * HO)
        h = row * S + i - P
        live = (p < N * HO * WO) & (h >= 0) & (h < H)
        slope = tl.load(dy + (p * C)[:, None] + c[None, :], mask=live[:, None] & known[None, :], other=0.0)
        for j in tl.static_range(K):
            v = column * S + j - P
            inside = live & (v >= 0) & (v < W)
            place = ((image * H + h) * W + v) * C
            pixel = tl.load(x + place[:, None] + c[None, :], mask=inside[:, None] & known[None, :], other=0.0)
            part = slope.to(tl.float32) * pixel.to(tl.float32)
            if j == 0:
                t0 += part
            elif j == 1:
                t1 += part
            elif j == 2:
                t2 += part
            elif j == 3:
                t3 += part
            else:
                t4 += part
    place = out + (share * K * K + i * K) * C + c
    tl.store(place, tl.sum(t0, 0), mask=known)
    tl.store(place + C, tl.sum(t1, 0), mask=known)
    tl.store(place + 2 * C, tl.sum(t2, 0), mask=known)
    if K > 3:
        tl.store(place + 3 * C, tl.sum(t3, 0), mask=known)
        tl.store(place + 4 * C, tl.sum(t4, 0), mask=known)


def _launch(kernel: Any) -> Any:
    """The kernel as torch.compile wants to see it; as it is where Triton interprets it."""
    return wrap_triton(kernel) if isinstance(kernel, triton.runtime.JITFunction) else kernel


def _images(t: Tensor) -> Tensor:
    return t.contiguous(memory_format=torch.channels_last)


def channels_fastest(weight: Tensor) -> Tensor:
    """The same C×1×k×k filters, in memory as k×k×1×C: so neither they nor their gradients need to be laid out anew."""
    return weight.permute(2, 3, 1, 0).contiguous().permute(3, 2, 0, 1)


def _taps(weight: Tensor) -> Tensor:
    """C×1×k×k filters as k²×C; no copy, if they lie in memory as `channels_fastest` leaves them."""
    return weight.flatten(1).t().contiguous()


def _empty(shape: tuple[int, int, int, int], like: Tensor) -> Tensor:
    _, c, h, w = shape
    return torch.empty_strided(shape, (h * w * c, 1, w * c, c), device=like.device, dtype=like.dtype)


def _grid(positions: int, channels: int) -> tuple[int, int]:
    return triton.cdiv(positions, TILE["BP"]), triton.cdiv(channels, TILE["BC"])


@triton_op("fedchoir::depthwise", mutates_args={})
def depthwise(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    """B×C×H×W images, C×1×k×k filters."""
    (n, c, h, w), k = x.shape, weight.shape[-1]
    ho, wo = (h + 2 * padding - k) // stride + 1, (w + 2 * padding - k) // stride + 1
    y = _empty((n, c, ho, wo), x)
    _launch(_forward)[_grid(n * ho * wo, c)](
        _images(x), _taps(weight), y, n, h, w, c, ho, wo, K=k, S=stride, P=padding, **TILE
    )
    return y


@triton_op("fedchoir::depthwise_input_gradient", mutates_args={})
def input_gradient(dy: Tensor, weight: Tensor, height: int, width: int, stride: int, padding: int) -> Tensor:
    (n, c, ho, wo), k = dy.shape, weight.shape[-1]
    dx = _empty((n, c, height, width), dy)
    _launch(_input_gradient)[_grid(n * height * width, c)](
        _images(dy), _taps(weight), dx, n, height, width, c, ho, wo,
        K=k, S=stride, P=padding, **TILE,
    )  # fmt: skip
    return dx


@triton_op("fedchoir::depthwise_weight_gradient", mutates_args={})
def weight_gradient(x: Tensor, dy: Tensor, size: int, stride: int, padding: int) -> Tensor:
    (n, c, h, w), (ho, wo) = x.shape, (dy.shape[2], dy.shape[3])
    positions, tiles = n * ho * wo, triton.cdiv(c, GRADIENT_TILE["BC"])
    most = PROGRAMS // (tiles * size) + 1
    length = triton.next_power_of_2(triton.cdiv(positions, most))  # few lengths: each is a kernel
    share = max(GRADIENT_TILE["BP"], length)
    shares = triton.cdiv(positions, share)
    out = torch.empty((shares, size * size, c), device=x.device, dtype=torch.float32)
    _launch(_weight_gradient)[(tiles, size, shares)](
        _images(x), _images(dy), out, n, h, w, c, ho, wo,
        SHARE=share, K=size, S=stride, P=padding, **GRADIENT_TILE,
    )  # fmt: skip
    return out.sum(0).t().reshape(c, 1, size, size)


def _remember(ctx: Any, inputs: tuple[Tensor, Tensor, int, int], output: Tensor) -> None:
    x, weight, ctx.stride, ctx.padding = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    dw = weight_gradient(x, dy, weight.shape[-1], ctx.stride, ctx.padding).to(weight.dtype)
    dx = input_gradient(dy, weight, x.shape[2], x.shape[3], ctx.stride, ctx.padding)
    return dx, dw, None, None


depthwise.register_autograd(_backward, setup_context=_remember)


class DepthwiseConv2d(nn.Conv2d):
    """A depthwise convolution in kernels of its own; torch's wherever there is no GPU."""

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cuda":
            return super().forward(x)
        if torch.is_autocast_enabled("cuda"):
            x = x.to(torch.get_autocast_dtype("cuda"))
        return depthwise(x, self.weight, int(self.stride[0]), int(self.padding[0]))


def is_depthwise(layer: nn.Module) -> TypeGuard[nn.Conv2d]:
    """One filter for each channel, square, without bias: what the kernels here can do."""
    if type(layer) is not nn.Conv2d or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return False
    alone = layer.groups == layer.in_channels == layer.out_channels > 1 and layer.bias is None
    square = len(set(layer.kernel_size)) == len(set(layer.stride)) == len(set(layer.padding)) == 1
    return alone and square and layer.dilation == (1, 1) and layer.kernel_size[0] in SIZES
