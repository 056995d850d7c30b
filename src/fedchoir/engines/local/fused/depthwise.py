"""Depthwise convolution: launches the kernels of the forward pass and both gradients.

Filters are channels-last, as images are. The forward kernel also computes the moments of its output. The input-gradient
kernel also applies the gradient of the activation before and computes the sums that this layer's norm needs.
"""

# mypy: disable-error-code="import-untyped"

import torch
import triton
from torch import Tensor, nn

from fedchoir.engines.local.fused.common import (
    TILE_CHANNELS,
    Norm,
    channel_blocks,
    empty_channels_last,
    partial_sums,
    per_channel,
    split_count,
    zero_counters,
)
from fedchoir.engines.local.fused.kernels import depthwise as kernels
from fedchoir.engines.local.fused.kernels.common import LANES

FORWARD_TILE = {"G": 8, "BP": 16, "BC": TILE_CHANNELS, "num_warps": 4}
INPUT_TILE = {"G": 4, "BP": 16, "BC": TILE_CHANNELS, "num_warps": 4}
FILTER_TILE = {"G": 8, "BP": 8, "BC": TILE_CHANNELS, "num_warps": 4}
FILTER_SIZES = (3, 5)


def _taps(weight: Tensor) -> Tensor:
    """C×1×k×k filters as k²×C; a view where `layers.use_fused_layers` has set their memory format."""
    return weight.flatten(1).t().contiguous()


def _fitted(tile: dict[str, int], width: int) -> dict[str, int]:
    """The tile with at most as many columns as there are."""
    return tile | {"G": min(tile["G"], triton.next_power_of_2(width))}


def convolve(x: Tensor, filters: Tensor, conv: nn.Conv2d, following: nn.BatchNorm2d) -> tuple[Tensor, Tensor, Tensor]:
    """The convolution of ``x``, with its moments if the norm that follows is in training mode."""
    (n, c, h, w), k, s, p = x.shape, conv.kernel_size[0], conv.stride[0], int(conv.padding[0])
    ho, wo = (h + 2 * p - k) // s + 1, (w + 2 * p - k) // s + 1
    y, (mean, rstd) = empty_channels_last((n, c, ho, wo), x), per_channel(x, 2)
    tile = _fitted(FORWARD_TILE, wo)
    groups = triton.cdiv(wo, tile["G"])
    partials, splits = partial_sums(y, triton.cdiv(n * ho * groups, tile["BP"]))
    kernels.forward[channel_blocks(c), splits](
        x, _taps(filters), y, partials, zero_counters(x.device), mean, rstd,
        following.running_mean, following.running_var, following.num_batches_tracked,
        n, c // LANES, following.eps, following.momentum, int(following.training), int(following.track_running_stats),
        H=h, W=w, HO=ho, WO=wo, GROUPS=groups, K=k, S=s, P=p, RAGGED=wo % tile["G"] > 0, **tile,
    )  # fmt: skip
    return y, mean, rstd


def input_gradient(
    dy: Tensor, filters: Tensor, conv: nn.Conv2d, x: Tensor, norm: Norm
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient through the convolution and the activation before, and of the weight and bias of that layer's norm."""
    (n, c, ho, wo), (h, w) = dy.shape, x.shape[2:]
    k, s, p = conv.kernel_size[0], conv.stride[0], int(conv.padding[0])
    dh, (dweight, dbias) = torch.empty_like(x), per_channel(x, 2)
    tile = _fitted(INPUT_TILE, max(w, s)) | ({"maxnreg": 128} if k == 3 else {})  # so that one more program fits
    rows, groups = triton.cdiv(h, s), triton.cdiv(w, tile["G"])
    partials, splits = partial_sums(x, triton.cdiv(n * rows * groups, tile["BP"]))
    kernels.input_gradient[channel_blocks(c), splits](
        dy, _taps(filters), x, dh, partials, zero_counters(x.device), *norm.tensors(), dweight, dbias,
        n, c // LANES, H=h, W=w, HO=ho, WO=wo, ROWS=rows, GROUPS=groups,
        ACT=norm.act, K=k, S=s, P=p, RAGGED=w % tile["G"] > 0 or h % s > 0, **tile,
    )  # fmt: skip
    return dh, dweight, dbias


def weight_gradient(x: Tensor, dy: Tensor, conv: nn.Conv2d) -> Tensor:
    (n, c, h, w), (ho, wo) = x.shape, dy.shape[2:]
    k, s, p = conv.kernel_size[0], conv.stride[0], int(conv.padding[0])
    tile = _fitted(FILTER_TILE, wo)
    groups = triton.cdiv(wo, tile["G"])
    tap_rows = k if k == 3 else 1
    tap_groups = k // tap_rows
    splits = split_count(triton.cdiv(n * ho * groups, tile["BP"]), tap_groups * c)
    partials, dw = per_channel(x, splits * k * k), per_channel(x, k * k)
    kernels.weight_gradient[channel_blocks(c), tap_groups, splits](
        x, dy, partials, zero_counters(x.device), dw, n, c // LANES,
        H=h, W=w, HO=ho, WO=wo, GROUPS=groups, K=k, S=s, P=p, TAP_ROWS=tap_rows, **tile,
    )  # fmt: skip
    return dw.t().reshape(c, 1, k, k)
