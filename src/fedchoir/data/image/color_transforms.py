"""Color statistics of a set of images (21 numbers), and recoloring of images with such statistics.

As in `augment`, random numbers are drawn on a CPU generator and copied to the device.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedchoir.data.image.pixels import denormalise, grey, normalise
from fedchoir.data.image.resize import float_chunk
from fedchoir.data.samples import Recolor

WIDE_COLORS = torch.cat([torch.full((3, 1), 0.5), 0.25 * torch.eye(3), 0.25 * torch.eye(3)], dim=1).unsqueeze(0)
"""Statistics that give every colour on every background, 1×3×7; they come from no data set."""

_RIDGE = 1e-6  # added to covariances, which are singular for grey images
_FLAT = 1e-6  # smallest variance of luma by which an image is standardised


def color_statistics(images: Tensor) -> Tensor:
    """The color statistics of a set of images, 3×7: the mean colour m and two roots of 3×3 covariances, side by side.

    With c_n the mean colour of image n:

        [m | B | W],   B Bᵀ = cov_n c_n,   W Wᵀ = mean_n cov_pixels x_n

    B describes how the mean colour differs between images, W how colours differ within an image. Both are lower
    triangular with a positive diagonal.

    Args:
        images: uint8, N×3×H×W.

    >>> grey_and_white = torch.tensor([102, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 4, 4)
    >>> colors = color_statistics(grey_and_white)  # two plain images: colours differ between them, not within
    >>> [round(v, 2) for v in (colors[0, 0].item(), colors[0, 1].item(), colors[0, 4].item())]
    [0.7, 0.3, 0.0]
    """
    size = float_chunk(images.shape[1:])
    pieces = (images[start : start + size] for start in range(0, len(images), size))
    chunks = [_moments(piece.to(torch.float32).div(255)) for piece in pieces]
    means, within = (torch.cat(column) for column in zip(*chunks, strict=True))
    centred = means - means.mean(dim=0)
    between = torch.einsum("na,nb->ab", centred, centred) / len(images)
    return torch.cat([means.mean(dim=0).unsqueeze(1), _root(between), _root(within.mean(dim=0))], dim=1)


def _moments(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean colour of every image, N×3, and the covariance of colours within it, N×3×3."""
    means = pixels.mean(dim=(2, 3))
    centred = (pixels - means[:, :, None, None]).flatten(2)
    return means, centred @ centred.mT / centred.shape[2]


def _root(covariance: Tensor) -> Tensor:
    return torch.linalg.cholesky(covariance + _RIDGE * torch.eye(3, device=covariance.device))


def recolor(pixels: Tensor, colors: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Recolor a random ``share`` of a batch, each image with statistics drawn from ``colors``.

    Args:
        pixels: float32 in [0, 1], B×3×H×W.
        colors: color statistics, N×3×7.
        share: probability that an image is recolored.

    >>> batch, colors = torch.rand(4, 3, 8, 8), torch.rand(2, 3, 7)
    >>> changed = recolor(batch, colors, 0.5, torch.Generator().manual_seed(0))
    >>> [torch.equal(new, old) for new, old in zip(changed, batch, strict=True)]
    [False, True, False, True]
    """
    batch = len(pixels)
    chosen = torch.randint(len(colors), (batch,), generator=generator)
    selected = torch.rand(batch, generator=generator) < share
    noise = torch.randn(2, batch, 3, 1, generator=generator)
    chosen, selected, noise = (t.to(pixels.device, non_blocking=True) for t in (chosen, selected, noise))
    mean, between, within = colors[chosen].split([1, 3, 3], dim=2)
    changed = two_colors(pixels, mean + between @ noise[0], within @ noise[1])
    return torch.where(selected.view(-1, 1, 1, 1), changed, pixels)


def two_colors(pixels: Tensor, mean: Tensor, contrast: Tensor) -> Tensor:
    """Every image in one colour on one background:

        x′ = clamp(mean + contrast · z, 0, 1),   z = luma of x with mean 0 and variance 1 over the image

    Args:
        pixels: B×3×H×W.
        mean: the new mean colour, B×3×1.
        contrast: the change of colour per standard deviation of luma, B×3×1; negative values invert the image.

    >>> half = torch.tensor([0.0, 1.0]).view(1, 1, 1, 2).expand(1, 3, 1, 2)
    >>> contrast = torch.tensor([0.25, 0.0, -0.25]).view(1, 3, 1)
    >>> two_colors(half, torch.full((1, 3, 1), 0.5), contrast).squeeze().tolist()
    [[0.25, 0.75], [0.5, 0.5], [0.75, 0.25]]
    """
    z = grey(pixels)
    z = z - z.mean(dim=(2, 3), keepdim=True)
    z = z / z.square().mean(dim=(2, 3), keepdim=True).clamp_min(_FLAT).sqrt()
    return (mean.unsqueeze(3) + contrast.unsqueeze(3) * z).clamp(0, 1)


def recolored(
    images: Tensor, recolor: Recolor, generator: torch.Generator, mean: Sequence[float], std: Sequence[float]
) -> Tensor:
    """Apply ``recolor`` to the pixels of normalised images."""
    pixels = recolor(denormalise(images, mean, std), generator)
    return normalise(pixels, mean, std).contiguous(memory_format=torch.channels_last)
