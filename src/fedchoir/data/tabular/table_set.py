"""Labelled rows of a table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedchoir.data.samples import Samples, describe
from fedchoir.data.tabular.column import Column
from fedchoir.data.tabular.encoder import Encoder, Encoding
from fedchoir.utils.input_spec import InputSpec

PLAIN = Encoding()
NOISE = 0.1  # of a column's standard deviation
DROPOUT = 0.2  # share of the cells that become missing


@dataclass(frozen=True)
class TableSet(Samples):
    """Rows of a table: ``inputs`` are float32, N×D, with NaN for missing values and codes for categories.

    Attributes:
        columns: names and kinds, the same for all clients.
        encoding: which features the columns become, the same for all clients.
        encoder: ``own``: fitted on these samples (training sets); ``client``: that of the client that uses the samples
            (tests and public sets); or a given one.
    """

    columns: tuple[Column, ...] = ()
    encoding: Encoding = PLAIN
    encoder: Encoder | Literal["own", "client"] = "own"

    modality: ClassVar[str] = "table"
    augmentations: ClassVar[tuple[str, ...]] = ("weak", "strong", "noise", "feature-dropout")
    copies_are_leaks: ClassVar[bool] = False  # two people may have the same values

    def __post_init__(self) -> None:
        if self.inputs.dtype != torch.float32 or self.inputs.shape[1:] != (len(self.columns),):
            raise ValueError(f"rows: float32 N×{len(self.columns)} wanted, not {describe(self.inputs)}")
        super().__post_init__()

    @cached_property
    def transform(self) -> Encoder | None:
        if self.encoder == "own":
            return Encoder.fit(self.inputs, self.columns, self.encoding)
        return None if self.encoder == "client" else self.encoder

    @property
    def scaled_by_itself(self) -> bool:
        return self.encoder == "own" and self.encoding.scaling == "own"

    def for_every_client(self) -> TableSet:
        return replace(self, encoder="client") if self.encoder == "own" else self

    @property
    def input_spec(self) -> InputSpec:
        return InputSpec("table", (len(self.encoding.features(self.columns)),))

    def augment(self, inputs: Tensor, kind: str, generator: torch.Generator) -> Tensor:
        """``noise``: add noise to numeric cells. ``feature-dropout``: make cells missing. ``strong`` is both."""
        if kind == "none":
            return inputs
        if kind not in self.augmentations:
            return super().augment(inputs, kind, generator)
        if kind != "feature-dropout":
            noise = torch.randn(inputs.shape, generator=generator).to(inputs.device)
            inputs = inputs + NOISE * self._deviations.to(inputs.device) * noise
        if kind in ("strong", "feature-dropout"):
            dropped = torch.rand(inputs.shape, generator=generator) < DROPOUT
            inputs = inputs.masked_fill(dropped.to(inputs.device), float("nan"))
        return inputs

    @cached_property
    def _deviations(self) -> Tensor:
        """The standard deviation of every numeric column in these samples; 0 for the others."""
        cells = self.inputs.cpu().double()
        deviations = (cells - cells.nanmean(0)).square().nanmean(0).sqrt().nan_to_num(0.0).float()
        numeric = torch.tensor([column.kind in ("numeric", "date") for column in self.columns])
        return torch.where(numeric, deviations, 0.0)
