"""Labelled samples of any modality. The core knows samples; only a modality's own package knows what they are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, Self

import torch
from torch import Tensor

from fedchoir.data.mapped import join, row_hashes, take
from fedchoir.utils.errors import UsageError
from fedchoir.utils.input_spec import InputSpec

DIGEST_ROWS = 1024  # read at a time

Augmentation = Literal[
    "none", "weak", "strong", "crop-flip", "fccl", "affine", "recolor", "affine-recolor", "noise", "feature-dropout",
    "jitter", "scale", "crop", "token-dropout", "simclr", "simclr-no-blur", "byol",
]  # fmt: skip
"""The names of all modalities. Each has ``weak`` and ``strong``; its class lists the others that it knows."""

Recolor = Callable[[Tensor, torch.Generator], Tensor]
"""A random change of pixels, B×3×S×S in [0, 1], that draws from the given generator."""


class Transform(Protocol):
    """From a batch of stored inputs to what a model takes. A pure function; equal ones compare equal."""

    def __call__(self, inputs: Tensor) -> Tensor: ...

    def to_json(self) -> dict[str, Any]:
        """Its kind and parameters, for an exported model."""


@dataclass(frozen=True)
class Samples:
    """Labelled samples of one modality.

    Attributes:
        inputs: N×…, as stored: uint8 images, float32 tables and series, int64 tokens. A `MappedTensor` may stand for a
            tensor that is too large for memory.
        labels: int64, N; positions in the scenario's ``classes``, −1 for the unlabeled samples of a public set.
    """

    inputs: Tensor
    labels: Tensor

    modality: ClassVar[str] = "tensor"
    augmentations: ClassVar[tuple[str, ...]] = ()
    """The names that `augment` knows beside ``none``."""
    second_views: ClassVar[Mapping[str, str]] = {}
    """Augmentations whose second view of a sample is another one, which `augment` knows too."""
    copies_are_leaks: ClassVar[bool] = True
    """Whether equal inputs mean the same sample, so that training copies of test samples are left out."""

    def __post_init__(self) -> None:
        if self.labels.dtype != torch.int64 or self.labels.shape != self.inputs.shape[:1]:
            raise ValueError(f"labels: int64 N={len(self.inputs)} wanted, not {describe(self.labels)}")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def transform(self) -> Transform | None:
        """What makes a model's inputs of the stored ones; None: the transform of the client that uses the samples."""
        return None

    @property
    def scaled_by_itself(self) -> bool:
        """Whether `transform` was fitted on these samples, so that each of them changes the inputs made of all."""
        return False

    @property
    def input_spec(self) -> InputSpec:
        """What a model receives."""
        return InputSpec(self.modality, tuple(self.inputs.shape[1:]))

    def augment(self, inputs: Tensor, kind: str, generator: torch.Generator) -> Tensor:
        """A random variant of a stored batch, before `transform`. Draws come from a generator on the CPU."""
        if kind == "none":
            return inputs
        known = ", ".join(("none", *self.augmentations))
        raise UsageError(f"augmentation: {kind!r} is not possible for {self.modality} samples; choose one of {known}")

    def recolored(self, inputs: Tensor, recolor: Recolor, generator: torch.Generator) -> Tensor:
        """Transformed images in other colours."""
        raise UsageError(f"recoloring is for images, and these are {self.modality} samples")

    def for_every_client(self) -> Self:
        """The same samples for testing: a transform that is fitted on them gives way to that of the tested client."""
        return self

    def subset(self, index: Tensor) -> Self:
        """The samples at ``index`` (int64 positions or a boolean mask of N), in that order."""
        return replace(self, inputs=take(self.inputs, index), labels=self.labels[index].contiguous())

    def joined(self, *others: Samples) -> Self:
        """All sets in one, with this one's transform."""
        sets: tuple[Samples, ...] = (self, *others)
        return replace(self, inputs=join([s.inputs for s in sets]), labels=torch.cat([s.labels for s in sets]))

    def hashes(self) -> list[bytes]:
        """One 16-byte hash per sample, equal exactly when the inputs are."""
        return row_hashes(self.inputs)

    def digest(self) -> str:
        """sha256 of the shape and values: two sites can compare sets without exchanging samples."""
        digest = hashlib.sha256(repr(tuple(self.inputs.shape)).encode())
        for start in range(0, len(self), DIGEST_ROWS):
            digest.update(self.inputs[start : start + DIGEST_ROWS].cpu().contiguous().numpy().data)
        return digest.hexdigest()

    def to(self, device: torch.device | str) -> Self:
        """A copy on another device."""
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device))


def describe(tensor: Tensor) -> str:
    """Dtype and shape for an error message.

    >>> describe(torch.zeros(2, 3))
    'float32 2×3'
    """
    return f"{str(tensor.dtype).removeprefix('torch.')} {'×'.join(map(str, tensor.shape)) or 'scalar'}"


def unlabeled(count: int) -> Tensor:
    """The labels of a public set."""
    return torch.full((count,), -1, dtype=torch.int64)
