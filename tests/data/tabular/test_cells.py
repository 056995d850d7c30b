"""How cells are stored."""

import numpy as np
import pandas as pd
import pytest
import torch

from fedchoir.data.tabular.cells import UNSEEN, store
from fedchoir.data.tabular.column import Column
from fedchoir.utils.errors import UsageError


def test_cells_as_they_are_stored() -> None:
    columns = (
        Column("n"),
        Column("b", "boolean"),
        Column("c", "categorical", ("1", "2")),
        Column("d", "date"),
    )
    frame = pd.DataFrame(
        {"N": ["1.5", None], "b": ["Yes", None], "c": [2.0, 9.0], "d": ["1970-01-03", "1970-01-01T12:00"]}
    )
    stored = store(frame, columns, "t")
    assert stored.dtype == torch.float32
    assert torch.equal(stored.nan_to_num(-7.0), torch.tensor([[1.5, 1, 1, 2], [-7, -7, UNSEEN, 0.5]]))


@pytest.mark.parametrize(
    ("column", "cell"),
    [(Column("x"), "many"), (Column("x"), np.inf), (Column("x", "boolean"), "maybe"), (Column("x", "date"), "soon")],
)
def test_a_wrong_cell_is_named(column: Column, cell: object) -> None:
    right = "2024-01-31" if column.kind == "date" else 1
    with pytest.raises(UsageError, match=rf"file\.csv: column x: '{cell}' in row 2"):
        store(pd.DataFrame({"x": pd.Series([right, cell], dtype=object)}), [column], "file.csv")
