"""New rows for a trained model: a CSV or Parquet file with the client's columns."""

from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor

from fedchoir.data.options import DataOptions
from fedchoir.data.preprocessing import Preprocessing, numbered, refused
from fedchoir.data.tabular.cells import store
from fedchoir.data.tabular.column import key
from fedchoir.data.tabular.encoder import Encoder
from fedchoir.data.tabular.files import checked, read_table
from fedchoir.utils.errors import UsageError

MEMORY = "a pandas DataFrame"


def load(content: dict[str, Any], options: DataOptions) -> Preprocessing:
    encoder = Encoder.from_json(content["transform"])

    def stored(frame: pd.DataFrame, where: str, what: str) -> Tensor:
        present = {key(name) for name in frame.columns}
        if missing := [column.name for column in encoder.columns if key(column.name) not in present]:
            raise UsageError(
                f"{where}: the model needs the columns {', '.join(missing)}, which the {what} does not have"
            )
        return store(frame, encoder.columns, where)

    def read(path: Path) -> tuple[list[str], Tensor]:
        inputs = stored(read_table(path), str(path), "file")
        return numbered(inputs), inputs

    def convert(data: Any) -> Tensor:
        if not isinstance(data, pd.DataFrame):
            raise refused(data, MEMORY)
        return stored(checked(data, "new samples"), "new samples", "DataFrame")

    return Preprocessing(read, encoder, convert, MEMORY)
