"""Batch normalization with its activation: launches the kernels of the statistics, the forward pass and the gradients.

The statistics (mean, 1/deviation) come from `moments` or from the convolution kernel before. The forward pass is then
one pass over memory: ``y = act(norm(x))``, times a gate per image and channel (squeeze-and-excitation), or times a
scale per image (stochastic depth) plus the residual.
"""

# mypy: disable-error-code="import-untyped"

from dataclasses import replace

import torch
import triton
from torch import Tensor, nn

from fedchoir.engines.local.fused.common import (
    TILE_CHANNELS,
    Norm,
    channel_blocks,
    partial_sums,
    per_channel,
    zero_counters,
)
from fedchoir.engines.local.fused.kernels import norm as kernels
from fedchoir.engines.local.fused.kernels.common import LANES, NONE

MOMENT_TILE = {"BP": 128, "BC": TILE_CHANNELS, "num_warps": 4}
SUM_TILE = {"BP": 64, "BC": TILE_CHANNELS, "num_warps": 4}
TILE = {"BP": 64, "BC": TILE_CHANNELS, "num_warps": 4}
IMAGE_TILE, IMAGE_WARPS = 64, 4  # positions, of one image or several


def sizes(x: Tensor) -> tuple[int, int, int]:
    """Positions, channels in eights, positions of an image."""
    n, c, h, w = x.shape
    return n * h * w, c // LANES, h * w


def _gate_mode(gate: Tensor | None, hw: int, tile: dict[str, int]) -> int:
    """0: no gate; 1: each position loads its row of the gate; 2: a tile is of one image and loads one row."""
    return 0 if gate is None else 2 if hw % tile["BP"] == 0 else 1


def moments(x: Tensor, layer: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Mean and 1/deviation of each channel. Updates the layer's running statistics if it tracks them."""
    (m, c8, _), (mean, rstd) = sizes(x), per_channel(x, 2)
    partials, splits = partial_sums(x, triton.cdiv(m, MOMENT_TILE["BP"]))
    kernels.moments[channel_blocks(x.shape[1]), splits](
        x, partials, zero_counters(x.device), mean, rstd, layer.running_mean, layer.running_var,
        layer.num_batches_tracked, m, c8, layer.eps, layer.momentum, int(layer.track_running_stats), **MOMENT_TILE,
    )  # fmt: skip
    return mean, rstd


def normalise(
    x: Tensor, norm: Norm, gate: Tensor | None = None, image_scale: Tensor | None = None,
    residual: Tensor | None = None, add_first: bool = False,
) -> Tensor:  # fmt: skip
    """``act(norm(x))``, gated or scaled, plus the residual. ``add_first``: the activation comes after the addition."""
    (m, c8, hw), y = sizes(x), torch.empty_like(x)
    kernels.normalise[channel_blocks(x.shape[1]), triton.cdiv(m, TILE["BP"])](
        x, y, *norm.tensors(), *(x if t is None else t for t in (gate, image_scale, residual)), m, c8, hw,
        ACT=norm.act, ADD_FIRST=add_first, GATE=_gate_mode(gate, hw, TILE), IMAGE_SCALE=image_scale is not None,
        RESIDUAL=residual is not None, **TILE,
    )  # fmt: skip
    return y


def gradient(
    dy: Tensor, x: Tensor, norm: Norm, gate: Tensor | None = None, dpool: Tensor | None = None,
    image_scale: Tensor | None = None, sums: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of input, weight and bias. ``sums``: the last two, where the kernel before has computed them."""
    (m, c8, hw), dx = sizes(x), torch.empty_like(x)
    extra = tuple(x if t is None else t for t in (gate, dpool, image_scale))
    flags = {"ACT": norm.act, "IMAGE_SCALE": image_scale is not None}
    dweight, dbias = sums or per_channel(x, 2)
    if sums is None:
        partials, splits = partial_sums(x, triton.cdiv(m, SUM_TILE["BP"]))
        kernels.sums[channel_blocks(x.shape[1]), splits](
            dy, x, partials, zero_counters(x.device), *norm.tensors(), *extra, x, x, dweight, dbias, m, c8, hw,
            ADD_FIRST=False, GATE=_gate_mode(gate, hw, SUM_TILE), **flags, **SUM_TILE,
        )  # fmt: skip
    kernels.gradient[channel_blocks(x.shape[1]), triton.cdiv(m, TILE["BP"])](
        dy, x, dx, *norm.tensors(), *extra, dweight, dbias, m, c8, hw, GATE=_gate_mode(gate, hw, TILE), **flags, **TILE
    )
    return dx, dweight, dbias


def add_relu_gradient(dy: Tensor, y: Tensor, x: Tensor, norm: Norm) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of residual, input, weight and bias of ``y = relu(norm(x) + residual)``."""
    (m, c8, hw), dsum, (dweight, dbias) = sizes(x), torch.empty_like(x), per_channel(x, 2)
    partials, splits = partial_sums(x, triton.cdiv(m, SUM_TILE["BP"]))
    kernels.sums[channel_blocks(x.shape[1]), splits](
        dy, x, partials, zero_counters(x.device), *norm.tensors(), x, x, x, y, dsum, dweight, dbias, m, c8, hw,
        ACT=NONE, ADD_FIRST=True, GATE=0, IMAGE_SCALE=False, **SUM_TILE,
    )  # fmt: skip
    return dsum, *gradient(dsum, x, replace(norm, act=NONE), sums=(dweight, dbias))


def image_sums(x: Tensor, norm: Norm, dy: Tensor | None = None, gate: Tensor | None = None) -> Tensor:
    """N×C: the mean of ``act(norm(x))`` over each image, or with ``dy`` the gradient before the gate's sigmoid."""
    (n, c, h, w), out = x.shape, torch.empty(x.shape[:2], device=x.device, dtype=torch.float32)
    positions = min(IMAGE_TILE, triton.next_power_of_2(h * w))
    images_per_tile = IMAGE_TILE // positions
    kernels.image_sums[channel_blocks(c), triton.cdiv(n, images_per_tile)](
        x, x if dy is None else dy, out, *norm.tensors(), x if gate is None else gate, n, c // LANES, h * w,
        ACT=norm.act, BACKWARD=dy is not None, BI=images_per_tile, BP=positions, BC=TILE_CHANNELS,
        num_warps=IMAGE_WARPS,
    )  # fmt: skip
    return out
