"""Labelled series as float tensors, and the scaling of their channels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedchoir.data.samples import Samples, describe
from fedchoir.data.series.augment import AUGMENTATIONS, augment

Scaling = Literal["own", "client", "none"]


@dataclass(frozen=True)
class Standardise:
    """Every channel minus its mean, over its standard deviation.

    >>> Standardise((1.0,), (2.0,))(torch.tensor([[[1.0, 3.0]]]))
    tensor([[[0., 1.]]])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def fit(cls, series: Tensor) -> Standardise:
        """The statistics of N×channels×time. A constant channel is only shifted."""
        channels = series.double().transpose(0, 1).flatten(1)
        mean, std = channels.mean(dim=1), channels.std(dim=1, correction=0)
        std[std < 1e-8 * (1 + mean.abs())] = 1.0
        return cls(tuple(mean.tolist()), tuple(std.tolist()))

    def __call__(self, inputs: Tensor) -> Tensor:
        mean, std = (torch.tensor(v, device=inputs.device).view(-1, 1) for v in (self.mean, self.std))
        return (inputs - mean) / std

    def to_json(self) -> dict[str, Any]:
        return {"kind": "series-standardise", "mean": list(self.mean), "std": list(self.std)}


@dataclass(frozen=True)
class SeriesSet(Samples):
    """Labelled series: ``inputs`` are float32, N×channels×time.

    Attributes:
        scaling: ``own``: by the mean and standard deviation of each channel of these samples, a client's training
            samples; ``client``: by those of the client that uses them (tests and public sets); ``none``: the samples
            are in standard units already.
    """

    scaling: Scaling = "own"

    modality: ClassVar[str] = "series"
    augmentations: ClassVar[tuple[str, ...]] = AUGMENTATIONS

    def __post_init__(self) -> None:
        if self.inputs.dtype != torch.float32 or self.inputs.ndim != 3:
            raise ValueError(f"series: float32 N×channels×time wanted, not {describe(self.inputs)}")
        super().__post_init__()

    @cached_property
    def transform(self) -> Standardise | None:
        if self.scaling == "client":
            return None
        channels = self.inputs.shape[1]
        return (
            Standardise.fit(self.inputs) if self.scaling == "own" else Standardise((0.0,) * channels, (1.0,) * channels)
        )

    @property
    def scaled_by_itself(self) -> bool:
        return self.scaling == "own"

    def for_every_client(self) -> SeriesSet:
        return replace(self, scaling="client") if self.scaling == "own" else self

    def augment(self, inputs: Tensor, kind: str, generator: torch.Generator) -> Tensor:
        return augment(inputs, kind, generator) if kind in AUGMENTATIONS else super().augment(inputs, kind, generator)
