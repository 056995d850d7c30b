"""New series for a trained model: the array of an `.npz` file."""

from pathlib import Path
from typing import Any

from torch import Tensor

from fedchoir.data.options import DataOptions
from fedchoir.data.preprocessing import Preprocessing, check_shape, numbered
from fedchoir.data.series.files import read_public_series
from fedchoir.data.series.series_set import Standardise


def load(content: dict[str, Any], options: DataOptions) -> Preprocessing:
    statistics = content["transform"]

    def read(path: Path) -> tuple[list[str], Tensor]:
        inputs = check_shape(path, read_public_series(path), content)
        return numbered(inputs), inputs

    return Preprocessing(read, Standardise(tuple(statistics["mean"]), tuple(statistics["std"])))
