"""Columns that contradict themselves are refused."""

import pytest

from fedchoir.data.tabular.column import Column


def test_impossible_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="min below max"):
        Column("age", min=5, max=5)
    with pytest.raises(ValueError, match="needs its categories"):
        Column("sex", "categorical")
