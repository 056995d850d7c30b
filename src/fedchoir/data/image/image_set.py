"""Labelled images as uint8 tensors; batches are converted to float on the device."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Triple = tuple[float, float, float]

IMAGENET_MEAN: Triple = (0.485, 0.456, 0.406)
IMAGENET_STD: Triple = (0.229, 0.224, 0.225)

_LUMA = (0.2989, 0.587, 0.114)
_RESIZE_CHUNK = 2048  # images resized at a time, to bound the float copies


@dataclass(frozen=True)
class ImageSet:
    """Labelled images.

    Attributes:
        images: uint8, N×3×S×S, contiguous.
        labels: int64, N; positions in the scenario's ``classes``.
        mean: per channel, of images in [0, 1].
        std: per channel.
    """

    images: Tensor
    labels: Tensor
    mean: Triple = IMAGENET_MEAN
    std: Triple = IMAGENET_STD

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4 or self.images.shape[1] != 3:
            raise ValueError(f"images: uint8 N×3×S×S wanted, not {describe(self.images)}")
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise ValueError(f"labels: int64 N={len(self.images)} wanted, not {describe(self.labels)}")

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, index: Tensor) -> ImageSet:
        """The images at ``index`` (int64 positions or a boolean mask of N), in that order."""
        return replace(self, images=self.images[index].contiguous(), labels=self.labels[index].contiguous())

    def joined(self, *others: ImageSet) -> ImageSet:
        """All sets in one, with this one's normalisation."""
        sets = (self, *others)
        return replace(self, images=torch.cat([s.images for s in sets]), labels=torch.cat([s.labels for s in sets]))

    def hashes(self) -> list[bytes]:
        """One 16-byte hash per image, equal exactly when the pixels are."""
        return [hashlib.blake2b(row, digest_size=16).digest() for row in self.images.cpu().numpy()]

    def to(self, device: torch.device | str) -> ImageSet:
        """A copy on another device."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))


def describe(tensor: Tensor) -> str:
    """Dtype and shape for an error message.

    >>> describe(torch.zeros(2, 3))
    'float32 2×3'
    """
    return f"{str(tensor.dtype).removeprefix('torch.')} {'×'.join(map(str, tensor.shape)) or 'scalar'}"


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(B×3×S×S uint8, or float in [0, 1]) → float32, minus ``mean``, over ``std``; on the images' device.

    >>> normalise(torch.ones(1, 3, 1, 1), (0.5, 0.5, 0.0), (0.5, 0.25, 1.0)).flatten()
    tensor([1., 2., 1.])
    """
    scale = 255.0 if images.dtype == torch.uint8 else 1.0
    gain, offset = _affine(tuple(mean), tuple(std), scale, images.device)
    return torch.addcmul(offset, images.to(torch.float32), gain)


def grey(pixels: Tensor) -> Tensor:
    """Luma of B×3×S×S, B×1×S×S."""
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


def resize(images: Tensor, size: int) -> Tensor:
    """uint8 N×C×H×W → uint8 N×C×size×size: bilinear with antialiasing, without keeping the aspect ratio."""
    if images.shape[-2:] == (size, size):
        return images
    done = [
        F.interpolate(part.float(), (size, size), mode="bilinear", antialias=True).round_().clamp_(0, 255).byte()
        for part in images.split(_RESIZE_CHUNK)
    ]
    return torch.cat(done) if done else images.new_zeros((0, images.shape[1], size, size))


def as_images(array: np.ndarray, size: int) -> Tensor:
    """Convert images in any usual layout to uint8 N×3×size×size; other layouts or values raise ValueError.

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
    return resize(images, size).expand(-1, 3, -1, -1).contiguous()


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


def images_digest(images: Tensor) -> str:
    """sha256 of the shape and pixels of a set: two sites can compare sets without exchanging images."""
    digest = hashlib.sha256(repr(tuple(images.shape)).encode())
    digest.update(images.cpu().contiguous().numpy().data)
    return digest.hexdigest()
