"""Labelled tensors of any shape, or of several shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedchoir.data.samples import Samples, describe
from fedchoir.utils.input_spec import InputSpec

NOISE = {"weak": 0.05, "noise": 0.05, "strong": 0.2}
"""Noise of each augmentation, relative to the standard deviation of a sample's values."""


@dataclass(frozen=True)
class AsGiven:
    """The samples as their Dataset returns them."""

    def __call__(self, inputs: Tensor) -> Tensor:
        return inputs

    def to_json(self) -> dict[str, Any]:
        return {"kind": "tensor-as-given"}


@dataclass(frozen=True)
class TensorSet(Samples):
    """Labelled tensors: ``inputs`` are float32, N×….

    Attributes:
        tensors: the shapes of samples of several tensors, which are stored flattened, one after the other.
    """

    tensors: tuple[tuple[int, ...], ...] = ()

    modality: ClassVar[str] = "tensor"
    augmentations: ClassVar[tuple[str, ...]] = tuple(NOISE)

    def __post_init__(self) -> None:
        if self.inputs.dtype != torch.float32 or self.inputs.ndim < 2:
            raise ValueError(f"tensors: float32 N×… wanted, not {describe(self.inputs)}")
        super().__post_init__()

    @property
    def transform(self) -> AsGiven:
        return AsGiven()

    @property
    def input_spec(self) -> InputSpec:
        return InputSpec("tensor", tuple(self.inputs.shape[1:]), tensors=self.tensors)

    def augment(self, inputs: Tensor, kind: str, generator: torch.Generator) -> Tensor:
        """Nothing is known about the values, so every augmentation is noise."""
        if kind not in NOISE:
            return super().augment(inputs, kind, generator)
        spread = inputs.flatten(1).std(dim=1, correction=0).view(-1, *[1] * (inputs.ndim - 1))
        noise = torch.randn(inputs.shape, generator=generator).to(inputs.device, non_blocking=True)
        return inputs + NOISE[kind] * spread * noise
