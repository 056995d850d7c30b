"""What every launch of a kernel needs: how the work is divided into programs, and memory for results.

With TRITON_INTERPRET=1 the kernels run on a CPU, slowly; tests use that.
"""

# mypy: disable-error-code="import-untyped"

from dataclasses import dataclass
from functools import cache

import torch
import triton
from torch import Tensor

from fedchoir.engines.local.fused import deferred_weight_grads as deferred

INTERPRETED = triton.knobs.runtime.interpret
TILE_CHANNELS = 32
MAX_SPLITS = 256  # partial sums that the last program adds up
PROGRAMS = 1056  # eight for each multiprocessor of a large GPU


@dataclass(frozen=True)
class Norm:
    """A batch norm's statistics on one batch, its weights, and the code of the activation that follows."""

    act: int
    mean: Tensor
    rstd: Tensor
    weight: Tensor
    bias: Tensor

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.mean, self.rstd, self.weight, self.bias


def channel_blocks(channels: int) -> int:
    """How many tiles cover the channels."""
    return triton.cdiv(channels, TILE_CHANNELS)


def split_count(tiles: int, channels: int) -> int:
    """Over how many programs a sum over so many tiles of positions is split."""
    return min(tiles, MAX_SPLITS, triton.cdiv(PROGRAMS, channel_blocks(channels)))


@cache
def _counters(device: torch.device) -> Tensor:
    return torch.zeros((1 + deferred.STREAMS, 4096), dtype=torch.int32, device=device)


def zero_counters(device: torch.device) -> Tensor:
    """A zero for each block of channels. Kernels of one stream run one after the other, and each resets its own."""
    return _counters(device)[deferred.current_stream()]


def empty_channels_last(shape: tuple[int, int, int, int], like: Tensor) -> Tensor:
    _, c, h, w = shape
    return torch.empty_strided(shape, (h * w * c, 1, w * c, c), device=like.device, dtype=like.dtype)


def channels_last(t: Tensor) -> Tensor:
    """The tensor itself, if its memory format is channels-last already."""
    return t.contiguous(memory_format=torch.channels_last)


def per_channel(like: Tensor, rows: int = 1) -> Tensor:
    """Room for ``rows`` float32 values per channel."""
    return torch.empty((rows, like.shape[1]), device=like.device, dtype=torch.float32)


def partial_sums(x: Tensor, tiles: int) -> tuple[Tensor, int]:
    """Room for the partial results of two sums per channel, and over how many programs these are split."""
    splits = split_count(tiles, x.shape[1])
    return per_channel(x, 2 * splits), splits
