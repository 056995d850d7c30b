"""Random augmentation of whole batches on the device, with individual parameters for every image.

The random numbers are drawn on a CPU generator and copied, so that the augmentation is the same on every device and
nothing synchronises with it. Colour jitter has a fixed order: brightness, contrast, saturation, hue.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fedchoir.data.image.color_transforms import WIDE_COLORS, recolor
from fedchoir.data.image.pixels import grey
from fedchoir.data.image.views import VIEWS, ViewParameters, blur_and_solarise
from fedchoir.utils.errors import UsageError

AUGMENTATIONS = (
    "weak", "strong", "crop-flip", "fccl", "affine", "recolor", "affine-recolor", "simclr", "simclr-no-blur", "byol",
)  # fmt: skip

CROP_SCALE = (0.2, 1.0)
CROP_RATIO = (3 / 4, 4 / 3)
CROP_ATTEMPTS = 10
STRONG = ViewParameters(min_scale=CROP_SCALE[0], jitter=(0.4, 0.4, 0.4, 0.1))
PADDED_SHARE = 1 / 8  # of the shorter side: 4 pixels of 32
FCCL_PADDING = 4
FCCL_DEGREES = 15.0
AFFINE_DEGREES = 15.0
AFFINE_ZOOM = 1.25  # largest factor either way
AFFINE_SHIFT = 0.1  # relative to height and width
RECOLOR_SHARE = 0.5


def augment(images: Tensor, kind: str, generator: torch.Generator) -> Tensor:
    """Augment a batch: uint8 B×3×H×W → float32 B×3×H×W in [0, 1] on the same device.

    ``none``: scaling to [0, 1] only. ``weak``: random resized crop and horizontal flip. ``strong``: weak, colour jitter
    and greyscale. ``crop-flip``: crop of the image's own size after padding with zeros by an eighth of the shorter side
    (4 pixels of 32, 2 of 16) and horizontal flip (FCCL+'s released code). ``fccl``: crop after padding by 4, flip and
    rotation within ±15° (FCCL's released code). ``affine``: rotation within ±15°, zoom by up to 1.25 either way and
    shift by up to a tenth of the side, without flip, for digits and characters. ``recolor``: half of the images in two
    random colours (`recolor`). ``affine-recolor``: both. ``simclr``, ``simclr-no-blur`` and ``byol``: parameter sets of
    released codes for self-supervised learning (`views`).

    >>> batch = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    >>> augment(batch, "strong", torch.Generator().manual_seed(1)).shape
    torch.Size([4, 3, 8, 8])
    """
    pixels = images.to(torch.float32).div_(255)
    if kind == "none":
        return pixels
    batch, height, width = len(images), *images.shape[-2:]
    if kind in ("fccl", "crop-flip"):
        padding = FCCL_PADDING if kind == "fccl" else max(1, round(min(height, width) * PADDED_SHARE))
        left, top = torch.randint(-padding, padding + 1, (2, batch), generator=generator)
        flipped = torch.rand(batch, generator=generator) < 0.5
        if kind == "crop-flip":
            return shift(pixels, top, left, flipped)
        degrees = (torch.rand(batch, generator=generator) * 2 - 1) * FCCL_DEGREES
        return rotate(shift(pixels, top, left, flipped), degrees)
    if kind in ("affine", "affine-recolor"):
        degrees = (torch.rand(batch, generator=generator) * 2 - 1) * AFFINE_DEGREES
        zoom = AFFINE_ZOOM ** (torch.rand(batch, generator=generator) * 2 - 1)
        move = (torch.rand(2, batch, generator=generator) * 2 - 1) * AFFINE_SHIFT * torch.tensor([[height], [width]])
        pixels = affine(pixels, degrees, zoom, move)
    if kind in ("recolor", "affine-recolor"):
        pixels = recolor(pixels, WIDE_COLORS.to(pixels.device, non_blocking=True), RECOLOR_SHARE, generator)
    if kind in ("affine", "recolor", "affine-recolor"):
        return pixels
    if kind in VIEWS:
        return view(pixels, VIEWS[kind], generator)
    if kind not in ("weak", "strong"):
        raise UsageError(f"augmentation: {kind!r} is not one of {', '.join(('none', *AUGMENTATIONS))}")
    if kind == "strong":
        return view(pixels, STRONG, generator)
    return crop_and_flip(pixels, CROP_SCALE[0], generator)


def crop_and_flip(pixels: Tensor, min_scale: float, generator: torch.Generator) -> Tensor:
    """Random resized crop with at least a share of the area, and horizontal flip."""
    height, width = pixels.shape[-2:]
    boxes = draw_boxes(len(pixels), height, width, generator, min_scale)
    flipped = torch.rand(len(pixels), generator=generator) < 0.5
    return resized_crop(pixels, boxes, flipped)


def view(pixels: Tensor, p: ViewParameters, generator: torch.Generator) -> Tensor:
    """One view for self-supervised learning, B×3×H×W in [0, 1]."""
    pixels = _jitter_and_grey(crop_and_flip(pixels, p.min_scale, generator), p, generator)
    if not p.blur_probability and not p.solarise_probability:
        return pixels
    return blur_and_solarise(pixels, p, generator)


def _send(device: torch.device, *parameters: Tensor) -> list[Tensor]:
    """Copy parameters to the device without synchronisation."""
    return [parameter.to(device, non_blocking=True) for parameter in parameters]


def draw_boxes(
    batch: int, height: int, width: int, generator: torch.Generator, min_scale: float = CROP_SCALE[0]
) -> Tensor:
    """Boxes of random resized crops, int64 B×4: top, left, height, width.

    The box is the first of ten draws of area and aspect ratio that fits, else the whole image.
    """
    attempts = (CROP_ATTEMPTS, batch)
    area = torch.empty(attempts).uniform_(min_scale, CROP_SCALE[1], generator=generator) * height * width
    low, high = (math.log(r) for r in CROP_RATIO)
    ratio = torch.empty(attempts).uniform_(low, high, generator=generator).exp()
    widths, heights = ((area * ratio).sqrt().round(), (area / ratio).sqrt().round())
    fits = (widths >= 1) & (widths <= width) & (heights >= 1) & (heights <= height)
    first = fits.int().argmax(dim=0, keepdim=True)
    whole = ~fits.any(dim=0)
    w = widths.gather(0, first)[0].masked_fill(whole, width)
    h = heights.gather(0, first)[0].masked_fill(whole, height)
    place = torch.rand(2, batch, generator=generator)
    top = (place[0] * (height - h + 1)).floor()
    left = (place[1] * (width - w + 1)).floor()
    return torch.stack([top, left, h, w], dim=1).long()


def resized_crop(pixels: Tensor, boxes: Tensor, flipped: Tensor) -> Tensor:
    """Crop ``boxes`` (B×4: top, left, height, width) of float B×3×H×W and resize them to H×W, bilinearly."""
    boxes, flipped = _send(pixels.device, boxes, flipped)
    top, left, height, width = boxes.to(torch.float32).unbind(1)
    rows = _samples(top, height, pixels.shape[-2])
    columns = _samples(left, width, pixels.shape[-1])
    columns = torch.where(flipped[:, None], columns.flip(1), columns)
    return _look_up(pixels, rows[:, :, None], columns[:, None, :])


def _samples(start: Tensor, length: Tensor, count: int) -> Tensor:
    """The positions of ``count`` output pixels along an axis (B×count, in input pixels), inside the box."""
    centres = (torch.arange(count, device=start.device) + 0.5) / count
    inside = (centres * length[:, None] - 0.5).clamp_min(0)
    return start[:, None] + torch.minimum(inside, length[:, None] - 1)


def shift(pixels: Tensor, top: Tensor, left: Tensor, flipped: Tensor) -> Tensor:
    """Shift images by whole pixels (B each; zeros outside), then flip them where ``flipped``."""
    top, left, flipped = _send(pixels.device, top, left, flipped)
    rows, columns = (
        (torch.arange(count, device=pixels.device) + start[:, None]).float()
        for count, start in zip(pixels.shape[-2:], (top, left), strict=True)
    )
    columns = torch.where(flipped[:, None], columns.flip(1), columns)
    return _look_up(pixels, rows[:, :, None], columns[:, None, :], mode="nearest")


def rotate(pixels: Tensor, degrees: Tensor) -> Tensor:
    """Rotate every image counter-clockwise about its centre by its own angle (B); nearest pixel, zeros outside."""
    (angle,) = _send(pixels.device, torch.deg2rad(degrees)[:, None, None])
    return _look_up(pixels, *_rotation(pixels, angle), mode="nearest")


def affine(pixels: Tensor, degrees: Tensor, zoom: Tensor, move: Tensor) -> Tensor:
    """Rotate every image counter-clockwise about its centre (B), zoom it (B) and move it down and right (2×B
    pixels); bilinear, with the border's colours outside."""
    angle, zoom, move = _send(pixels.device, *(t[..., None, None] for t in (torch.deg2rad(degrees), zoom, move)))
    return _look_up(pixels, *_rotation(pixels, angle, zoom, move), outside="border")


def _rotation(
    pixels: Tensor, angle: Tensor, zoom: Tensor | float = 1.0, move: Tensor | tuple[float, float] = (0.0, 0.0)
) -> tuple[Tensor, Tensor]:
    """The input rows and columns of every output pixel, B×H×W each."""
    cy, cx = ((count - 1) / 2 for count in pixels.shape[-2:])
    rows, columns = (torch.arange(count, device=pixels.device) - (count - 1) / 2 for count in pixels.shape[-2:])
    y, x = (rows[None, :, None] - move[0]) / zoom, (columns[None, None, :] - move[1]) / zoom
    return angle.sin() * x + angle.cos() * y + cy, angle.cos() * x - angle.sin() * y + cx


def _look_up(pixels: Tensor, rows: Tensor, columns: Tensor, mode: str = "bilinear", outside: str = "zeros") -> Tensor:
    """Read B×3×H×W at rows and columns in pixels (broadcast to B×H×W); zeros outside the image, or its border."""
    height, width = pixels.shape[-2:]
    y, x = ((rows + 0.5) * (2 / height) - 1, (columns + 0.5) * (2 / width) - 1)
    grid = torch.stack(torch.broadcast_tensors(x, y), dim=-1)
    return F.grid_sample(pixels, grid, mode=mode, padding_mode=outside, align_corners=False)


def _jitter_and_grey(pixels: Tensor, p: ViewParameters, generator: torch.Generator) -> Tensor:
    """Colour jitter for most samples, greyscale for some."""
    batch = len(pixels)
    strength = torch.tensor(p.jitter)[:, None]
    factors = (torch.rand(4, batch, generator=generator) * 2 - 1) * strength
    factors *= torch.rand(batch, generator=generator) < p.jitter_probability  # 0 changes nothing
    greyed = torch.rand(batch, generator=generator) < p.grey_probability
    factors, greyed = _send(pixels.device, factors, greyed)
    brightness, contrast, saturation = (factors[:3] + 1).unbind(0)
    pixels = jitter(pixels, brightness, contrast, saturation, factors[3])
    return torch.where(greyed.view(-1, 1, 1, 1), grey(pixels), pixels)


def jitter(pixels: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor, hue: Tensor) -> Tensor:
    """Change brightness, contrast, saturation (factors, neutral 1) and hue (turns, neutral 0), B each, in order."""
    pixels = (pixels * brightness.view(-1, 1, 1, 1)).clamp(0, 1)
    pixels = _blend(pixels, grey(pixels).mean(dim=(1, 2, 3), keepdim=True), contrast)
    pixels = _blend(pixels, grey(pixels), saturation)
    return turn_hue(pixels, hue)


def _blend(pixels: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(other.expand_as(pixels), pixels, factor.view(-1, 1, 1, 1)).clamp(0, 1)


def turn_hue(pixels: Tensor, turns: Tensor) -> Tensor:
    """Rotate the hue of every image by a fraction of a full circle (B), keeping saturation and value."""
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
