"""The size that images are converted to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor

from fedchoir.utils.input_spec import ImageSize

Aspect = Literal["squash", "pad", "crop"]

_MAX_CHUNK = 2048
_CHUNK_VALUES = 1 << 26


@dataclass(frozen=True)
class Resize:
    """Bilinear resizing with antialiasing.

    ``aspect`` is what happens to an image of another aspect ratio: ``squash`` stretches it, ``pad`` keeps all of it
    between black borders, ``crop`` keeps its centre.

    >>> Resize.to((24, 32), "pad").tensor(torch.ones(1, 3, 48, 48, dtype=torch.uint8))[0, 0, 0].nonzero().flatten()
    tensor([ 4,  5,  6,  7,  8,  9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
            22, 23, 24, 25, 26, 27])
    """

    height: int
    width: int
    aspect: Aspect = "squash"

    @classmethod
    def to(cls, size: ImageSize, aspect: Aspect = "squash") -> Resize:
        """To a square, or to height and width: the options ``image_size`` and ``aspect``."""
        height, width = (size, size) if isinstance(size, int) else size
        return cls(height, width, aspect)

    def image(self, image: Image.Image) -> Image.Image:
        """Resize one Pillow image."""
        size = (self.width, self.height)
        if self.aspect == "pad":
            return ImageOps.pad(image, size, Image.Resampling.BILINEAR)
        if self.aspect == "crop":
            return ImageOps.fit(image, size, Image.Resampling.BILINEAR)
        return image.resize(size, Image.Resampling.BILINEAR)

    def tensor(self, images: Tensor) -> Tensor:
        """uint8 N×C×h×w → uint8 N×C×H×W."""
        if self.aspect == "crop":
            images = self._centre(images)
        height, width = self._inside(*images.shape[-2:]) if self.aspect == "pad" else (self.height, self.width)
        images = _resized(images, height, width)
        top, left = (self.height - height) // 2, (self.width - width) // 2
        if (height, width) == (self.height, self.width):
            return images
        return F.pad(images, (left, self.width - width - left, top, self.height - height - top))

    def _inside(self, height: int, width: int) -> tuple[int, int]:
        """The largest size inside the frame with the image's aspect ratio."""
        scale = min(self.height / height, self.width / width)
        return max(1, round(height * scale)), max(1, round(width * scale))

    def _centre(self, images: Tensor) -> Tensor:
        """The largest part with the frame's aspect ratio."""
        height, width = images.shape[-2:]
        scale = min(height / self.height, width / self.width)
        h, w = max(1, round(self.height * scale)), max(1, round(self.width * scale))
        top, left = (height - h) // 2, (width - w) // 2
        return images[..., top : top + h, left : left + w]


def float_chunk(shape: Sequence[int]) -> int:
    """How many images of this shape to convert to floats at a time, to bound the copies."""
    return max(1, min(_MAX_CHUNK, _CHUNK_VALUES // math.prod(shape)))


def _resized(images: Tensor, height: int, width: int) -> Tensor:
    if images.shape[-2:] == (height, width):
        return images
    done = [
        F.interpolate(part.float(), (height, width), mode="bilinear", antialias=True).round_().clamp_(0, 255).byte()
        for part in images.split(float_chunk(images.shape[1:]))
    ]
    return torch.cat(done) if done else images.new_zeros((0, images.shape[1], height, width))
