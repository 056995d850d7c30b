"""How the cells of a table are stored: numbers, codes of categories, NaN where a value is missing."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from pandas.api import types
from torch import Tensor

from fedchoir.data.tabular.column import Column, key
from fedchoir.utils.errors import UsageError

UNSEEN = -1.0  # the code of a category that is not in the column's list
YES_NO = ({"yes", "no"}, {"true", "false"}, {"y", "n"}, {"t", "f"})
_TRUE = {"yes", "true", "y", "t"}


def as_text(values: pd.Series) -> pd.Series:
    """Cells as text; whole numbers without a decimal point, so that 1.0 and 1 are one category.

    >>> list(as_text(pd.Series([1.0, 2.5]))), list(as_text(pd.Series([" a", "1.0"])))
    (['1', '2.5'], ['a', '1'])
    """
    return values.astype(str).str.strip().str.replace(r"^(-?\d+)\.0+$", r"\1", regex=True)


def store(frame: pd.DataFrame, columns: Sequence[Column], where: str) -> Tensor:
    """The cells of a table in the order of ``columns``: float32, N×D, NaN where a value is missing.

    Columns are found by name. A category that is not in the column's list is stored as `UNSEEN`.
    """
    names = {key(name): name for name in frame.columns}
    stored = np.full((len(frame), len(columns)), np.nan, dtype=np.float32)
    for i, column in enumerate(columns):
        if (name := names.get(key(column.name))) is not None:
            stored[:, i] = _cells(frame[name], column, where)
    return torch.from_numpy(stored)


def _cells(values: pd.Series, column: Column, where: str) -> np.ndarray:
    if column.kind == "categorical":
        codes = {key(text): float(code) for code, text in enumerate(column.categories)}
        coded = as_text(values).map(lambda text: codes.get(key(text), UNSEEN))
        return coded.astype(float).mask(values.isna()).to_numpy()
    if column.kind == "date":
        given = values if types.is_datetime64_any_dtype(values) else as_text(values)
        dates = pd.to_datetime(given, errors="coerce", utc=True, format="ISO8601")
        numbers = (dates - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
    else:
        truths = as_text(values).str.casefold()
        named = truths.isin(set().union(*YES_NO))
        plain = values.mask(named, truths.isin(_TRUE).astype(float)) if column.kind == "boolean" else values
        numbers = pd.to_numeric(plain, errors="coerce").astype(float)
    wrong = (numbers.isna() & values.notna()) | np.isinf(numbers)
    if wrong.any():
        bad, what = values[wrong].iloc[0], {"date": "date", "boolean": "yes or no"}.get(column.kind, "finite number")
        raise UsageError(
            f"{where}: column {column.name}: {str(bad)!r} in row {int(wrong.to_numpy().argmax()) + 1} is no {what}"
        )
    return numbers.to_numpy()
