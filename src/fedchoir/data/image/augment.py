"""Random augmentation of whole batches on the device, every sample with its own parameters.

The random numbers are drawn on a CPU generator and sent over, so that every device sees the same augmentation and
nothing waits for the device. Colour jitter is applied in a fixed order: brightness, contrast, saturation, hue.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from fedchoir.data.image.color_transforms import WIDE_COLORS, recolor
from fedchoir.data.image.image_set import grey
from fedchoir.utils.errors import UsageError

Augmentation = Literal["none", "weak", "strong", "fccl", "affine", "recolor", "affine-recolor"]

CROP_SCALE = (0.2, 1.0)
CROP_RATIO = (3 / 4, 4 / 3)
CROP_ATTEMPTS = 10
JITTER = (0.4, 0.4, 0.4, 0.1)  # brightness, contrast, saturation, hue
JITTER_PROBABILITY = 0.8
GREY_PROBABILITY = 0.2
FCCL_PADDING = 4
FCCL_DEGREES = 15.0
AFFINE_DEGREES = 15.0
AFFINE_ZOOM = 1.25  # at most so much larger or smaller
AFFINE_SHIFT = 0.1  # of the side
RECOLOR_SHARE = 0.5


def augment(images: Tensor, kind: Augmentation, generator: torch.Generator) -> Tensor:
    """uint8 B×3×S×S → float32 B×3×S×S in [0, 1] on the same device, each sample changed on its own.

    ``weak``: random resized crop and horizontal flip. ``strong``: weak, colour jitter and greyscale. ``fccl``: crop
    after padding by 4, flip and rotation within ±15° (the augmentation of FCCL's released code). ``affine``: rotation
    within ±15°, zoom by up to 1.25 either way and shift by up to a tenth of the side, never mirrored: for digits and
    letters. ``recolor``: half of the images drawn anew in any two colours (`style.paint`). ``affine-recolor``: both.
    ``none``: scaled to [0, 1] only.

    >>> batch = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    >>> augment(batch, "strong", torch.Generator().manual_seed(1)).shape
    torch.Size([4, 3, 8, 8])
    """
    pixels = images.to(torch.float32).div_(255)
    if kind == "none":
        return pixels
    batch, side = len(images), images.shape[-1]
    if kind == "fccl":
        left, top = torch.randint(-FCCL_PADDING, FCCL_PADDING + 1, (2, batch), generator=generator)
        flipped = torch.rand(batch, generator=generator) < 0.5
        degrees = (torch.rand(batch, generator=generator) * 2 - 1) * FCCL_DEGREES
        return rotate(shift(pixels, top, left, flipped), degrees)
    if kind in ("affine", "affine-recolor"):
        degrees = (torch.rand(batch, generator=generator) * 2 - 1) * AFFINE_DEGREES
        zoom = AFFINE_ZOOM ** (torch.rand(batch, generator=generator) * 2 - 1)
        move = (torch.rand(2, batch, generator=generator) * 2 - 1) * AFFINE_SHIFT * side
        pixels = affine(pixels, degrees, zoom, move)
    if kind in ("recolor", "affine-recolor"):
        pixels = recolor(pixels, WIDE_COLORS.to(pixels.device, non_blocking=True), RECOLOR_SHARE, generator)
    if kind in ("affine", "recolor", "affine-recolor"):
        return pixels
    if kind not in ("weak", "strong"):
        raise UsageError(f"augmentation: {kind!r} is not one of {', '.join(get_args(Augmentation))}")
    boxes = draw_boxes(batch, side, generator)
    flipped = torch.rand(batch, generator=generator) < 0.5
    pixels = resized_crop(pixels, boxes, flipped)
    return pixels if kind == "weak" else _recolour(pixels, generator)


def _send(device: torch.device, *parameters: Tensor) -> list[Tensor]:
    """A few numbers per sample to the device, without waiting for it."""
    return [parameter.to(device, non_blocking=True) for parameter in parameters]


def draw_boxes(batch: int, side: int, generator: torch.Generator) -> Tensor:
    """Boxes of random resized crops, int64 B×4: top, left, height, width.

    Area and aspect ratio are drawn until the box fits, at most ten times; then the whole image is taken.
    """
    attempts = (CROP_ATTEMPTS, batch)
    area = torch.empty(attempts).uniform_(*CROP_SCALE, generator=generator) * side * side
    low, high = (math.log(r) for r in CROP_RATIO)
    ratio = torch.empty(attempts).uniform_(low, high, generator=generator).exp()
    widths, heights = ((area * ratio).sqrt().round(), (area / ratio).sqrt().round())
    fits = (widths >= 1) & (widths <= side) & (heights >= 1) & (heights <= side)
    first = fits.int().argmax(dim=0, keepdim=True)
    whole = ~fits.any(dim=0)
    width = widths.gather(0, first)[0].masked_fill(whole, side)
    height = heights.gather(0, first)[0].masked_fill(whole, side)
    place = torch.rand(2, batch, generator=generator)
    top = (place[0] * (side - height + 1)).floor()
    left = (place[1] * (side - width + 1)).floor()
    return torch.stack([top, left, height, width], dim=1).long()


def resized_crop(pixels: Tensor, boxes: Tensor, flipped: Tensor) -> Tensor:
    """Cut ``boxes`` (B×4: top, left, height, width) out of float B×3×S×S and stretch them to S×S, bilinearly."""
    side = pixels.shape[-1]
    boxes, flipped = _send(pixels.device, boxes, flipped)
    top, left, height, width = boxes.to(torch.float32).unbind(1)
    rows = _samples(top, height, side)
    columns = _samples(left, width, side)
    columns = torch.where(flipped[:, None], columns.flip(1), columns)
    return _look_up(pixels, rows[:, :, None].expand(-1, -1, side), columns[:, None, :].expand(-1, side, -1))


def _samples(start: Tensor, length: Tensor, side: int) -> Tensor:
    """Where S output pixels lie along an axis (B×S, in input pixels), never outside the box."""
    centres = (torch.arange(side, device=start.device) + 0.5) / side
    inside = (centres * length[:, None] - 0.5).clamp_min(0)
    return start[:, None] + torch.minimum(inside, length[:, None] - 1)


def shift(pixels: Tensor, top: Tensor, left: Tensor, flipped: Tensor) -> Tensor:
    """Move the window by whole pixels (B each; zeros come in from outside), then mirror it where ``flipped``."""
    side = pixels.shape[-1]
    top, left, flipped = _send(pixels.device, top, left, flipped)
    steps = torch.arange(side, device=pixels.device)
    rows, columns = ((steps + start[:, None]).float() for start in (top, left))
    columns = torch.where(flipped[:, None], columns.flip(1), columns)
    rows, columns = rows[:, :, None].expand(-1, -1, side), columns[:, None, :].expand(-1, side, -1)
    return _look_up(pixels, rows, columns, mode="nearest")


def rotate(pixels: Tensor, degrees: Tensor) -> Tensor:
    """Turn every image counter-clockwise about its centre by its own angle (B); nearest pixel, zeros outside."""
    side = pixels.shape[-1]
    (angle,) = _send(pixels.device, torch.deg2rad(degrees)[:, None, None])
    centred = torch.arange(side, device=pixels.device) - (side - 1) / 2
    y, x = centred[None, :, None], centred[None, None, :]
    columns = angle.cos() * x - angle.sin() * y + (side - 1) / 2
    rows = angle.sin() * x + angle.cos() * y + (side - 1) / 2
    return _look_up(pixels, rows, columns, mode="nearest")


def affine(pixels: Tensor, degrees: Tensor, zoom: Tensor, move: Tensor) -> Tensor:
    """Turn every image counter-clockwise about its centre (B), enlarge it (B) and move it down and to the right by so
    many pixels (2×B); bilinear, with the border's colours outside."""
    side = pixels.shape[-1]
    angle, zoom, move = _send(pixels.device, torch.deg2rad(degrees)[:, None, None], zoom[:, None, None], move)
    centred = torch.arange(side, device=pixels.device) - (side - 1) / 2
    y = (centred[None, :, None] - move[0, :, None, None]) / zoom
    x = (centred[None, None, :] - move[1, :, None, None]) / zoom
    columns = angle.cos() * x - angle.sin() * y + (side - 1) / 2
    rows = angle.sin() * x + angle.cos() * y + (side - 1) / 2
    return _look_up(pixels, rows, columns, outside="border")


def _look_up(pixels: Tensor, rows: Tensor, columns: Tensor, mode: str = "bilinear", outside: str = "zeros") -> Tensor:
    """Read B×3×S×S at positions given in pixels (B×S×S each); zeros outside the image, or its border."""
    side = pixels.shape[-1]
    grid = torch.stack([columns, rows], dim=-1).add_(0.5).mul_(2 / side).sub_(1)
    return F.grid_sample(pixels, grid, mode=mode, padding_mode=outside, align_corners=False)


def _recolour(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Colour jitter for most samples, greyscale for some."""
    batch = len(pixels)
    strength = torch.tensor(JITTER)[:, None]
    factors = (torch.rand(4, batch, generator=generator) * 2 - 1) * strength
    factors *= torch.rand(batch, generator=generator) < JITTER_PROBABILITY  # 0 changes nothing
    greyed = torch.rand(batch, generator=generator) < GREY_PROBABILITY
    factors, greyed = _send(pixels.device, factors, greyed)
    brightness, contrast, saturation = (factors[:3] + 1).unbind(0)
    pixels = jitter(pixels, brightness, contrast, saturation, factors[3])
    return torch.where(greyed.view(-1, 1, 1, 1), grey(pixels), pixels)


def jitter(pixels: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor, hue: Tensor) -> Tensor:
    """Brightness, contrast, saturation (factors, 1 = as it is) and hue (turns, 0 = as it is), B each, in order."""
    pixels = (pixels * brightness.view(-1, 1, 1, 1)).clamp(0, 1)
    pixels = _blend(pixels, grey(pixels).mean(dim=(1, 2, 3), keepdim=True), contrast)
    pixels = _blend(pixels, grey(pixels), saturation)
    return turn_hue(pixels, hue)


def _blend(pixels: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(other.expand_as(pixels), pixels, factor.view(-1, 1, 1, 1)).clamp(0, 1)


def turn_hue(pixels: Tensor, turns: Tensor) -> Tensor:
    """Move the hue of every image by its own part of a full circle (B), keeping saturation and value."""
    red, green, blue = pixels.unbind(1)
    value = pixels.amax(dim=1)
    chroma = value - pixels.amin(dim=1)
    safe = chroma.clamp_min(1e-12)
    sixth = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    sixth = sixth + 6 * turns.view(-1, 1, 1)
    position = torch.stack([(sixth + n).remainder(6) for n in (5, 3, 1)], dim=1)
    amount = torch.minimum(position, 4 - position).clamp(0, 1)
    return value.unsqueeze(1) - chroma.unsqueeze(1) * amount
