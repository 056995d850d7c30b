"""Labelled images as uint8 tensors; batches are converted to float on the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedchoir.data.image.augment import AUGMENTATIONS, augment
from fedchoir.data.image.color_transforms import recolored
from fedchoir.data.image.pixels import IMAGENET_MEAN, IMAGENET_STD, Triple, normalise
from fedchoir.data.image.views import SECOND_VIEW
from fedchoir.data.samples import Recolor, Samples, describe


@dataclass(frozen=True)
class Normalise:
    """Images to float32, minus ``mean``, over ``std``, in the memory layout that convolutions prefer."""

    mean: Triple
    std: Triple

    def __call__(self, inputs: Tensor) -> Tensor:
        return normalise(inputs, self.mean, self.std).contiguous(memory_format=torch.channels_last)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "image-normalise", "mean": list(self.mean), "std": list(self.std)}


@dataclass(frozen=True)
class ImageSet(Samples):
    """Labelled images: ``inputs`` are uint8, N×3×H×W, contiguous.

    Attributes:
        mean: per channel, of images in [0, 1].
        std: per channel.
    """

    mean: Triple = IMAGENET_MEAN
    std: Triple = IMAGENET_STD

    modality: ClassVar[str] = "image"
    augmentations: ClassVar[tuple[str, ...]] = AUGMENTATIONS
    second_views: ClassVar[Mapping[str, str]] = SECOND_VIEW

    def __post_init__(self) -> None:
        if self.inputs.dtype != torch.uint8 or self.inputs.ndim != 4 or self.inputs.shape[1] != 3:
            raise ValueError(f"images: uint8 N×3×H×W wanted, not {describe(self.inputs)}")
        super().__post_init__()

    @property
    def transform(self) -> Normalise:
        return Normalise(self.mean, self.std)

    def augment(self, inputs: Tensor, kind: str, generator: torch.Generator) -> Tensor:
        return augment(inputs, kind, generator)

    def recolored(self, inputs: Tensor, recolor: Recolor, generator: torch.Generator) -> Tensor:
        return recolored(inputs, recolor, generator, self.mean, self.std)
