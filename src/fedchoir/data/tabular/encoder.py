"""A client's encoder: cells of a table → the numbers that a model takes. Its statistics stay at the client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fedchoir.data.tabular.cells import UNSEEN
from fedchoir.data.tabular.column import Column, Scaling
from fedchoir.utils.errors import UsageError

SMALLEST = 1e-6  # deviation relative to the mean below which a feature is constant: float32 has seven digits


@dataclass(frozen=True)
class Encoding:
    """What all clients agree on, so that their encoders give the same features.

    Attributes:
        scaling: ``own``: mean 0 and standard deviation 1 in the client's training samples; ``agreed``: from the agreed
            range of a column to −1…1, by no statistics of the client.
        drop_first: no feature for the first category of a column.
        missing_indicator: a further feature for each column, 1 where its value is missing.
    """

    scaling: Scaling = "own"
    drop_first: bool = False
    missing_indicator: bool = False

    def features(self, columns: Sequence[Column]) -> list[tuple[int, int]]:
        """(column, category) of every feature; the category is −1 for the value itself, −2 for the indicator."""
        found = []
        for i, column in enumerate(columns):
            codes = range(int(self.drop_first), len(column.categories)) if column.kind == "categorical" else (-1,)
            found += [(i, code) for code in codes]
        return found + [(i, -2) for i in range(len(columns)) if self.missing_indicator]


@dataclass(frozen=True)
class Encoder:
    """Fills in missing values, makes one feature per category, and scales every feature.

    A missing value becomes the median of the column (the most frequent value of a categorical or boolean one); with
    agreed scaling the middle of its range, or no category. An unknown category has 0 in all features of its column. A
    feature that is constant in the training samples becomes 0.
    """

    columns: tuple[Column, ...]
    encoding: Encoding
    fill: tuple[float, ...]  # of each column
    mean: tuple[float, ...]  # of each feature
    gain: tuple[float, ...]

    @classmethod
    def fit(cls, inputs: Tensor, columns: tuple[Column, ...], encoding: Encoding) -> Encoder:
        """The encoder of a client with these training samples (N×D)."""
        if encoding.scaling == "agreed":
            return cls(columns, encoding, *_agreed_scale(columns, encoding))
        fill = tuple(_fill(values, column) for values, column in zip(inputs.cpu().double().T, columns, strict=True))
        count = len(encoding.features(columns))
        unscaled = cls(columns, encoding, fill, (0.0,) * count, (1.0,) * count)(inputs.cpu()).double()
        mean, std = unscaled.mean(0), unscaled.std(0, correction=min(1, len(unscaled) - 1))
        gain = torch.where(std > SMALLEST * (1 + mean.abs()), 1 / std, 0.0)
        return cls(columns, encoding, fill, tuple(mean.tolist()), tuple(gain.tolist()))

    def __call__(self, inputs: Tensor) -> Tensor:
        """N×D as stored → N×F."""
        source, code, fill, mean, gain = _tensors(self, inputs.device)
        missing = inputs.isnan()
        cells = torch.where(missing, fill, inputs)[:, source]
        features = torch.where(code == -1, cells, (cells == code).to(cells.dtype))
        if self.encoding.missing_indicator:
            features = torch.where(code == -2, missing[:, source].to(cells.dtype), features)
        return (features - mean) * gain

    @property
    def names(self) -> list[str]:
        """A name for every feature, such as ``cp=2``."""
        named = []
        for i, code in self.encoding.features(self.columns):
            column = self.columns[i]
            suffix = " is missing" if code == -2 else "" if code == -1 else f"={column.categories[code]}"
            named.append(f"{column.name}{suffix}")
        return named

    def to_json(self) -> dict[str, Any]:
        return {"kind": "table-encoder", **asdict(self)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Encoder:
        """The encoder that `to_json` described."""
        columns = tuple(Column(**{**c, "categories": tuple(c["categories"])}) for c in content["columns"])
        numbers = {name: tuple(map(float, content[name])) for name in ("fill", "mean", "gain")}
        return cls(columns, Encoding(**content["encoding"]), **numbers)


def _fill(values: Tensor, column: Column) -> float:
    """What stands for a missing value: 0 where all are missing."""
    present = values[~values.isnan() & (values >= 0)] if column.kind == "categorical" else values[~values.isnan()]
    if not len(present):
        return 0.0
    if column.kind in ("categorical", "boolean"):
        return float(present.long().bincount().argmax())
    return float(present.quantile(0.5)) if len(present) < 1_000_000 else float(present.median())


Numbers = tuple[float, ...]


def _agreed_scale(columns: Sequence[Column], encoding: Encoding) -> tuple[Numbers, Numbers, Numbers]:
    """Fill, mean and gain from the agreed ranges; features of categories and indicators stay 0 or 1."""
    fill, middle, gain = [], [], []
    for column in columns:
        if column.range is None and column.kind != "categorical":
            raise UsageError(f"scaling = 'agreed' is not possible: column {column.name} has no min and max in columns")
        low, high = column.range or (UNSEEN, UNSEEN)
        fill.append((low + high) / 2)
    for i, code in encoding.features(columns):
        low, high = columns[i].range or (-1.0, 1.0) if code == -1 else (-1.0, 1.0)
        middle.append((low + high) / 2)
        gain.append(2 / (high - low))
    return tuple(fill), tuple(middle), tuple(gain)


@lru_cache(maxsize=256)
def _tensors(encoder: Encoder, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The encoder's numbers on a device: columns of the features, their categories, fill, mean, gain."""
    features = encoder.encoding.features(encoder.columns)
    with torch.inference_mode(False):
        source = torch.tensor([i for i, _ in features], device=device)
        numbers = ([float(code) for _, code in features], encoder.fill, encoder.mean, encoder.gain)
        code, fill, mean, gain = (torch.tensor(n, dtype=torch.float32, device=device) for n in numbers)
    return source, code, fill, mean, gain
