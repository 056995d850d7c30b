"""Random variants of series: noise, amplitude and time window, with individual parameters for every sample.

Random numbers are drawn on a CPU generator, so that the variants are the same on every device.
"""

import torch
from torch import Tensor

AUGMENTATIONS = ("weak", "strong", "jitter", "scale", "crop")

JITTER = 0.1  # standard deviation of the noise, relative to the sample's channel
SCALE = 0.1  # standard deviation of the factor of a channel
CROP = 0.7  # shortest window, relative to the length
STRONG = 2.0  # jitter and scale of ``strong``, relative to ``weak``


def augment(series: Tensor, kind: str, generator: torch.Generator) -> Tensor:
    """Augment a batch of series, float B×channels×time.

    ``jitter`` adds noise, ``scale`` multiplies every channel by a factor, ``crop`` stretches a window of time to the
    full length. ``weak`` is scale and jitter. ``strong`` is twice as much of both, and crop. Noise is relative to the
    variation within a sample, so no unit has to be known.
    """
    strength = STRONG if kind == "strong" else 1.0
    if kind in ("crop", "strong"):
        series = crop(series, generator)
    if kind in ("scale", "weak", "strong"):
        series = scale(series, strength * SCALE, generator)
    if kind in ("jitter", "weak", "strong"):
        series = jitter(series, strength * JITTER, generator)
    return series


def jitter(series: Tensor, std: float, generator: torch.Generator) -> Tensor:
    """Add white noise with ``std`` times the standard deviation of each sample's channel."""
    noise = torch.randn(series.shape, generator=generator).to(series.device, non_blocking=True)
    return series + std * series.std(dim=2, correction=0, keepdim=True) * noise


def scale(series: Tensor, std: float, generator: torch.Generator) -> Tensor:
    """Multiply every channel of every sample by a factor drawn from N(1, std²)."""
    factors = 1 + std * torch.randn((*series.shape[:2], 1), generator=generator)
    return series * factors.to(series.device, non_blocking=True)


def crop(series: Tensor, generator: torch.Generator) -> Tensor:
    """Cut a random window of 70 to 100 % of the time and stretch it to the full length, linearly interpolated."""
    batch, _, length = series.shape
    share, place = torch.rand((2, batch, 1), generator=generator)
    window = (CROP + (1 - CROP) * share) * (length - 1)
    start = place * (length - 1 - window)
    position = (start + window * torch.linspace(0, 1, length)).clamp_(0, length - 1)
    position = position[:, None, :].expand_as(series).to(series.device, non_blocking=True)
    left = position.floor().long()
    right = (left + 1).clamp_max(length - 1)
    return torch.lerp(series.gather(2, left), series.gather(2, right), position - left)
