"""Views for self-supervised learning: the named parameter sets of released codes.

One view is a random resized crop, a flip, colour jitter, greyscale, blur and solarisation, in this order, with
individual parameters for every image. Random numbers are drawn on a CPU generator, as in `augment`.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

SIGMA = (0.1, 2.0)  # of the blur, in pixels
SOLARISE_ABOVE = 0.5
RADIUS = math.ceil(3 * SIGMA[1])


@dataclass(frozen=True)
class ViewParameters:
    """Parameters of one view: smallest share of the area in a crop, strengths of brightness, contrast, saturation and
    hue, and probabilities."""

    min_scale: float = 0.08
    jitter: tuple[float, float, float, float] = (0.8, 0.8, 0.8, 0.2)
    jitter_probability: float = 0.8
    grey_probability: float = 0.2
    blur_probability: float = 0.0
    solarise_probability: float = 0.0


BYOL_JITTER = (0.4, 0.4, 0.2, 0.1)
VIEWS = {
    "simclr": ViewParameters(blur_probability=0.5),
    "simclr-no-blur": ViewParameters(),
    "byol": ViewParameters(jitter=BYOL_JITTER, blur_probability=1.0),
    "byol-second": ViewParameters(jitter=BYOL_JITTER, blur_probability=0.1, solarise_probability=0.2),
}
"""``simclr`` and ``byol`` are lightly's defaults. SimCLR and the released code of FedU and FedEMA do not blur images as
small as CIFAR's: ``simclr-no-blur``."""
SECOND_VIEW = {"byol": "byol-second"}
"""Where the second view of a sample has other parameters than the first."""


def blur_and_solarise(pixels: Tensor, p: ViewParameters, generator: torch.Generator) -> Tensor:
    """Blur and solarise a share of the images, B×3×H×W in [0, 1]."""
    batch = len(pixels)
    sigma = torch.empty(batch).uniform_(*SIGMA, generator=generator)
    blurred, solarised = torch.rand(2, batch, generator=generator)
    where = [blurred < p.blur_probability, solarised < p.solarise_probability]
    sigma, blurs, solarises = (t.to(pixels.device, non_blocking=True) for t in (sigma, *where))
    if p.blur_probability:
        pixels = torch.where(blurs.view(-1, 1, 1, 1), blur(pixels, sigma), pixels)
    if p.solarise_probability:
        inverted = torch.where(pixels >= SOLARISE_ABOVE, 1 - pixels, pixels)
        pixels = torch.where(solarises.view(-1, 1, 1, 1), inverted, pixels)
    return pixels


def blur(pixels: Tensor, sigma: Tensor) -> Tensor:
    """Gaussian blur with a standard deviation of its own for every image (B, pixels); the border is reflected."""
    batch, channels, height, width = pixels.shape
    radius = min(RADIUS, height - 1, width - 1)
    offsets = torch.arange(-radius, radius + 1, device=pixels.device)
    kernel = torch.exp(-(offsets**2) / (2 * sigma[:, None] ** 2))
    kernel = (kernel / kernel.sum(dim=1, keepdim=True)).repeat_interleave(channels, dim=0)  # B·3×k
    x = F.pad(pixels, (radius, radius, radius, radius), mode="reflect").flatten(0, 1).unsqueeze(0)
    for shape in ((-1, 1, 1, 2 * radius + 1), (-1, 1, 2 * radius + 1, 1)):
        x = F.conv2d(x, kernel.view(shape), groups=batch * channels)
    return x.view(batch, channels, height, width)
