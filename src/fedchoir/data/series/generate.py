"""A public set of series that needs no data: band-limited noise, the same at every site."""

import math

import torch
from torch import Tensor

from fedchoir.data.samples import unlabeled
from fedchoir.data.series.series_set import SeriesSet
from fedchoir.utils.rng import generator

HIGHEST = 0.25  # highest frequency, in cycles per step


def band_limited_noise(count: int, channels: int, length: int, seed: int) -> Tensor:
    """``count`` series in standard units: an offset and a sum of waves up to a random highest frequency.

    The offset and the amplitude of every channel are random, with mean squares that add up to 1. The highest frequency
    of a series is drawn on a logarithmic scale from one cycle per series to a quarter of a cycle per step. So there are
    constant, slow and fast series, as different activities of a person would be.
    """
    draw = generator(seed, "public series")
    bins = length // 2 + 1
    highest = max(1.0, HIGHEST * length) ** torch.rand((count, 1, 1), generator=draw)
    spectrum = torch.complex(*torch.randn((2, count, channels, bins), generator=draw))
    spectrum *= torch.arange(bins) <= highest
    spectrum[..., 0] = 0
    waves = torch.fft.irfft(spectrum, n=length)
    waves /= waves.square().mean(dim=2, keepdim=True).sqrt().clamp_min(1e-12)
    angle = math.pi / 2 * torch.rand((count, channels, 1), generator=draw)
    sign = torch.randn((count, channels, 1), generator=draw).sign()
    return (angle.cos() * sign + angle.sin() * waves).float()


def generate_public(channels: int, length: int, count: int, seed: int) -> SeriesSet:
    """A public set of generated series. They are in standard units, so no client's scaling applies to them."""
    return SeriesSet(band_limited_noise(count, channels, length, seed), unlabeled(count), scaling="none")
