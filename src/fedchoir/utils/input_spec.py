"""What a model receives: the modality and shape of one sample after preprocessing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

ImageSize = int | tuple[int, int]
"""The side of a square, or height and width."""


@dataclass(frozen=True)
class InputSpec:
    """One sample, without the batch dimension.

    Attributes:
        modality: ``image``, ``table``, ``series``, ``text`` or ``tensor``.
        shape: of one sample, such as (3, 32, 32).
        vocabulary: the number of token ids (text); 0 is padding.
        tensors: the shapes of samples that consist of several tensors. They are stored flattened, one after the
            other, and ``shape`` is their total length.

    >>> InputSpec.image(24).example(4).shape
    torch.Size([4, 3, 24, 24])
    """

    modality: str = "image"
    shape: tuple[int, ...] = (3, 32, 32)
    vocabulary: int = 0
    tensors: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))  # they may come from JSON
        object.__setattr__(self, "tensors", tuple(map(tuple, self.tensors)))
        if self.tensors and self.shape != (sum(map(math.prod, self.tensors)),):
            raise ValueError(f"tensors {self.tensors} do not fit into the shape {self.shape}")

    @classmethod
    def image(cls, size: ImageSize) -> InputSpec:
        """RGB images: a square of this side, or height and width."""
        return cls("image", (3, *((size, size) if isinstance(size, int) else size)))

    def example(self, batch: int = 2) -> Tensor:
        """A batch of zeros that a model takes."""
        return torch.zeros(batch, *self.shape, dtype=torch.int64 if self.modality == "text" else torch.float32)

    def __str__(self) -> str:
        return f"{self.modality} {'×'.join(map(str, self.shape))}"


IMAGES_32 = InputSpec.image(32)
"""The papers' images."""
