"""New rows for a trained model: a CSV or Parquet file with the client's columns."""

from pathlib import Path
from typing import Any

from torch import Tensor

from fedchoir.data.options import DataOptions
from fedchoir.data.preprocessing import Preprocessing, numbered
from fedchoir.data.tabular.cells import store
from fedchoir.data.tabular.column import key
from fedchoir.data.tabular.encoder import Encoder
from fedchoir.data.tabular.files import read_table
from fedchoir.utils.errors import UsageError


def load(content: dict[str, Any], options: DataOptions) -> Preprocessing:
    encoder = Encoder.from_json(content["transform"])

    def read(path: Path) -> tuple[list[str], Tensor]:
        frame = read_table(path)
        present = {key(name) for name in frame.columns}
        if missing := [column.name for column in encoder.columns if key(column.name) not in present]:
            raise UsageError(f"{path}: the model needs the columns {', '.join(missing)}, which the file does not have")
        inputs = store(frame, encoder.columns, str(path))
        return numbered(inputs), inputs

    return Preprocessing(read, encoder)
