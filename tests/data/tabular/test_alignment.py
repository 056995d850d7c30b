"""Columns of several clients: kinds, alignment by name, notes about differences."""

import numpy as np
import pandas as pd
import pytest
import torch

from fedchoir.data.tabular.alignment import agree, kind_of, with_ranges
from fedchoir.data.tabular.cells import store
from fedchoir.data.tabular.column import Column
from fedchoir.utils.errors import UsageError


def test_kinds_of_the_cells() -> None:
    cells = {
        "numeric": [1, 2, 3.5],
        "boolean": [True, False],
        "categorical": ["a", "b"],
        "date": ["2024-01-31", "1999-12-01 10:00"],
    }
    for kind, values in cells.items():
        assert kind_of(pd.Series([*values, None])) == kind
    assert kind_of(pd.Series(pd.to_datetime(["2024-01-31"]))) == "date"
    assert kind_of(pd.Series([0.0, 1.0, None])) == "boolean"
    assert kind_of(pd.Series([None, None])) is None


def test_columns_are_aligned_by_name_and_differences_noted() -> None:
    frames = {
        "a": pd.DataFrame({"Age": [50, 60], "sex": ["F", "M"], "smoker": [0, 1]}),
        "b": pd.DataFrame({"sex": ["f", "X"], "chol": [1.5, 2.5], "age": [41, 42]}),
    }
    columns, notes = agree(frames)
    assert [(c.name, c.kind) for c in columns] == [
        ("Age", "numeric"), ("sex", "categorical"), ("smoker", "boolean"), ("chol", "numeric"),
    ]  # fmt: skip
    assert [c.casefold() for c in columns[1].categories] == ["f", "m", "x"]
    text = " | ".join(notes)
    assert "a lacks the columns chol" in text
    assert "b lacks the columns smoker" in text
    assert "categories of sex differ: 3 in total, a has 2, b has 2" in text
    b = store(frames["b"], columns, "b")
    assert torch.equal(b[:, [0, 1, 3]], torch.tensor([[41, 0, 1.5], [42, 2, 2.5]]))
    assert b[:, 2].isnan().all()


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"age": [51]}, "b lacks the columns sex"),
        ({"age": [51], "sex": ["m"], "chol": [3]}, "a lacks the columns chol"),
        ({"sex": ["m"], "age": [51]}, "b has the columns in another order"),
        ({"age": [51], "sex": ["male"]}, "categories of sex differ: 2 in total, a has 1, b has 1"),
    ],
)
def test_strict_alignment_refuses_other_columns(other: dict[str, list[object]], reason: str) -> None:
    frames = {"a": pd.DataFrame({"age": [50], "sex": ["m"]}), "b": pd.DataFrame(other)}
    with pytest.raises(UsageError, match=reason):
        agree(frames, alignment="strict")


def test_a_column_of_different_kinds_is_refused_or_declared() -> None:
    frames = {"a": pd.DataFrame({"cp": [1, 2, 3]}), "b": pd.DataFrame({"cp": ["typical", "none", "none"]})}
    with pytest.raises(UsageError, match="column cp: numeric at a, categorical at b"):
        agree(frames)
    (column,), _ = agree(frames, categorical=("CP",))
    assert set(column.categories) == {"1", "2", "3", "typical", "none"}
    with pytest.raises(UsageError, match="there is no column 'zip'"):
        agree(frames, categorical=("zip",))


def test_columns_without_values_or_with_too_many_categories_are_left_out() -> None:
    frame = pd.DataFrame({"age": range(200), "name": [f"p{i}" for i in range(200)], "empty": [np.nan] * 200})
    columns, notes = agree({"a": frame})
    assert [column.name for column in columns] == ["age"]
    assert any("name is left out: 200 different values" in note for note in notes)
    assert any("empty is left out: it has no values" in note for note in notes)
    partly, notes = agree({"a": frame[["age"]], "b": pd.DataFrame({"age": [np.nan, np.nan]})})
    assert partly == (Column("age", observed=True),)
    assert any("age has no values at b" in note for note in notes)
    with pytest.raises(UsageError, match="no column is left"):
        agree({"a": frame[["empty"]]})


def test_observed_ranges_do_not_replace_agreed_ones() -> None:
    columns = (Column("age", min=0, max=120), Column("chol"), Column("flat"), Column("sex", "boolean"))
    parts = [torch.tensor([[50.0, 200.0, 3.0, 0.0]]), torch.tensor([[60.0, float("nan"), 3.0, 1.0], [1, 100, 3, 1]])]
    found = with_ranges(columns, parts)
    assert [column.range for column in found] == [(0, 120), (100, 200), None, (0, 1)]
