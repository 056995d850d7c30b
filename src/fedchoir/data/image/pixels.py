"""Conversions of images: layouts to uint8 N×3×H×W, normalisation, luma."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedchoir.data.image.resize import Resize
from fedchoir.utils.input_spec import ImageSize

Triple = tuple[float, float, float]

IMAGENET_MEAN: Triple = (0.485, 0.456, 0.406)
IMAGENET_STD: Triple = (0.229, 0.224, 0.225)

_LUMA = (0.2989, 0.587, 0.114)


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(B×3×H×W uint8, or float in [0, 1]) → float32, minus ``mean``, over ``std``; on the images' device.

    >>> normalise(torch.ones(1, 3, 1, 1), (0.5, 0.5, 0.0), (0.5, 0.25, 1.0)).flatten()
    tensor([1., 2., 1.])
    """
    scale = 255.0 if images.dtype == torch.uint8 else 1.0
    gain, offset = _affine(tuple(mean), tuple(std), scale, images.device)
    return torch.addcmul(offset, images.to(torch.float32), gain)


def grey(pixels: Tensor) -> Tensor:
    """Luma of B×3×H×W, B×1×H×W."""
    red, green, blue = pixels.split(1, dim=1)
    return _LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue


def denormalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """The inverse of `normalise` for images in [0, 1].

    >>> denormalise(torch.tensor([1.0, 2.0, 1.0]).view(1, 3, 1, 1), (0.5, 0.5, 0.0), (0.5, 0.25, 1.0)).flatten()
    tensor([1., 1., 1.])
    """
    gain, offset = _affine(tuple(mean), tuple(std), 1.0, images.device)
    return (images - offset) / gain


@lru_cache(maxsize=64)
def _affine(
    mean: tuple[float, ...], std: tuple[float, ...], scale: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Normalisation as gain and offset (1×3×1×1 each), cached on the device."""
    with torch.inference_mode(False):
        gain = torch.tensor([1 / (scale * s) for s in std], dtype=torch.float32)
        offset = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], dtype=torch.float32)
        return gain.view(1, 3, 1, 1).to(device), offset.view(1, 3, 1, 1).to(device)


def as_images(array: np.ndarray, size: ImageSize | Resize) -> Tensor:
    """Convert images in any usual layout to uint8 N×3×H×W of this size; other layouts or values raise ValueError.

    Layouts: N×H×W (grey), N×H×W×1 or 3, N×1 or 3×H×W. Values: integers 0…255 or floats 0…1.

    >>> as_images(np.zeros((5, 28, 28), dtype=np.uint8), 32).shape
    torch.Size([5, 3, 32, 32])
    """
    images = torch.from_numpy(np.ascontiguousarray(_bytes(array)))
    if images.ndim == 3:
        images = images.unsqueeze(1)
    elif images.ndim == 4 and images.shape[-1] in (1, 3):
        images = images.permute(0, 3, 1, 2)
    elif images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ValueError(f"shape {array.shape} is not N×H×W, N×H×W×3 or N×3×H×W")
    if 0 in images.shape:
        raise ValueError(f"shape {array.shape} holds no image")
    resize = size if isinstance(size, Resize) else Resize.to(size)
    return resize.tensor(images).expand(-1, 3, -1, -1).contiguous()


def _bytes(array: np.ndarray) -> np.ndarray:
    """Pixel values as uint8."""
    if array.dtype == np.uint8:
        return array
    whole = np.issubdtype(array.dtype, np.integer)
    if not whole and not np.issubdtype(array.dtype, np.floating):
        raise ValueError(f"pixels of dtype {array.dtype}; uint8 wanted")
    top = 255 if whole else 1
    if array.size and not (array.min() >= 0 and array.max() <= top):
        raise ValueError(f"{array.dtype} pixels outside 0…{top}")
    return (array if whole else np.rint(array * 255)).astype(np.uint8)
