"""The style of a set of images in 21 numbers, and images painted anew in such a style.

A style says how the colours of a domain lie: within an image, and from one image to the next. It says nothing about
what is in the images. As in `augment`, random numbers are drawn on a CPU generator and sent over to the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedchoir.data.image.image_set import denormalise, grey, normalise

Recolor = Callable[[Tensor, torch.Generator], Tensor]
"""A random change of pixels, B×3×S×S in [0, 1], that draws from the generator it is given."""

WIDE_COLORS = torch.cat([torch.full((3, 1), 0.5), 0.25 * torch.eye(3), 0.25 * torch.eye(3)], dim=1).unsqueeze(0)
"""One style with every colour on every ground, 1×3×7: nobody's own."""

_CHUNK = 2048  # images held as floats at a time

_RIDGE = 1e-6  # grey images vary along one line of the colour cube; a root needs a little of every direction
_FLAT = 1e-6  # variance below which an image counts as one plain colour


def color_statistics(images: Tensor) -> Tensor:
    """The style of a set of images, 3×7: their mean colour m, and two roots of 3×3 covariances, side by side.

    With c_n the mean colour of image n:

        [m | B | W],   B Bᵀ = cov_n c_n,   W Wᵀ = mean_n cov_pixels x_n

    so that B is how the mean colour differs between images, and W how colours differ within one. B and W are lower
    triangular with a positive diagonal. Any 3×7 numbers are a style that `paint` can use.

    Args:
        images: uint8, N×3×S×S.

    >>> grey_and_white = torch.tensor([102, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 4, 4)
    >>> style = style_of(grey_and_white)  # two plain images: colours differ between them, not within
    >>> [round(v, 2) for v in (style[0, 0].item(), style[0, 1].item(), style[0, 4].item())]
    [0.7, 0.3, 0.0]
    """
    parts = [_colours(part.to(torch.float32).div(255)) for part in images.split(_CHUNK)]
    colours, inside = (torch.cat(column) for column in zip(*parts, strict=True))
    apart = colours - colours.mean(dim=0)
    between = torch.einsum("na,nb->ab", apart, apart) / len(images)
    return torch.cat([colours.mean(dim=0).unsqueeze(1), _root(between), _root(inside.mean(dim=0))], dim=1)


def _colours(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean colour of every image, N×3, and the covariance of colours within it, N×3×3."""
    colours = pixels.mean(dim=(2, 3))
    inside = (pixels - colours[:, :, None, None]).flatten(2)
    return colours, inside @ inside.mT / inside.shape[2]


def _root(covariance: Tensor) -> Tensor:
    return torch.linalg.cholesky(covariance + _RIDGE * torch.eye(3, device=covariance.device))


def recolor(pixels: Tensor, styles: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """A random ``share`` of a batch painted in styles drawn from a list; the other images stay as they are.

    Args:
        pixels: float32 in [0, 1], B×3×S×S.
        styles: N×3×7.
        share: the chance of an image to be painted, 0 to 1.

    >>> batch, styles = torch.rand(4, 3, 8, 8), torch.rand(2, 3, 7)
    >>> seen = restyle(batch, styles, 0.5, torch.Generator().manual_seed(0))
    >>> [torch.equal(new, old) for new, old in zip(seen, batch, strict=True)]
    [False, True, False, True]
    """
    batch = len(pixels)
    chosen = torch.randint(len(styles), (batch,), generator=generator)
    painted = torch.rand(batch, generator=generator) < share
    noise = torch.randn(2, batch, 3, 1, generator=generator)
    chosen, painted, noise = (t.to(pixels.device, non_blocking=True) for t in (chosen, painted, noise))
    mean, between, within = styles[chosen].split([1, 3, 3], dim=2)
    seen = paint(pixels, mean + between @ noise[0], within @ noise[1])
    return torch.where(painted.view(-1, 1, 1, 1), seen, pixels)


def paint(pixels: Tensor, ground: Tensor, stroke: Tensor) -> Tensor:
    """Every image drawn with one stroke colour on one ground:

        x′ = clamp(ground + stroke · z, 0, 1),   z = luma of x with mean 0 and variance 1 over the image

    Args:
        pixels: B×3×S×S.
        ground: the new mean colour, B×3×1.
        stroke: what one standard deviation of luma adds to it, B×3×1; its sign decides what is bright and what dark.

    >>> half = torch.tensor([0.0, 1.0]).view(1, 1, 1, 2).expand(1, 3, 1, 2)
    >>> paint(half, torch.full((1, 3, 1), 0.5), torch.tensor([0.25, 0.0, -0.25]).view(1, 3, 1)).squeeze().tolist()
    [[0.25, 0.75], [0.5, 0.5], [0.75, 0.25]]
    """
    z = grey(pixels)
    z = z - z.mean(dim=(2, 3), keepdim=True)
    z = z / z.square().mean(dim=(2, 3), keepdim=True).clamp_min(_FLAT).sqrt()
    return (ground.unsqueeze(3) + stroke.unsqueeze(3) * z).clamp(0, 1)


def recolored(
    images: Tensor, recolor: Recolor, generator: torch.Generator, mean: Sequence[float], std: Sequence[float]
) -> Tensor:
    """Normalised images as ``restyle`` changes their pixels, normalised again."""
    pixels = recolor(denormalise(images, mean, std), generator)
    return normalise(pixels, mean, std).contiguous(memory_format=torch.channels_last)
