"""The target column: found by its name, with classes of all clients."""

import pandas as pd
import pytest

from fedchoir.data.tabular.target import class_names, labels_of, target_name, without
from fedchoir.utils.errors import UsageError


def test_target_by_option_by_usual_name_or_the_last_column() -> None:
    frames = {"a": pd.DataFrame({"sick": [0, 1], "Label": [0, 1], "age": [3, 4]})}
    assert target_name(frames, "sick") == ("sick", ())
    assert target_name(frames, None) == ("Label", ())
    name, notes = target_name({"a": frames["a"][["age", "sick"]]}, None)
    assert name == "sick"
    assert "the last column" in notes[0]
    assert list(without(frames["a"], "LABEL").columns) == ["sick", "age"]


def test_classes_are_those_of_all_clients_and_numbers_are_sorted_as_numbers() -> None:
    frames = {"a": pd.DataFrame({"y": [10.0, 2.0]}), "b": pd.DataFrame({"y": ["2", "1"]})}
    assert class_names(frames, "y") == ("1", "2", "10")
    assert class_names({"a": pd.DataFrame({"y": ["no", "yes"]})}, "y") == ("no", "yes")
    labels = labels_of(frames["a"], "y", ("1", "2", "10"), "a")
    assert labels.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (pd.DataFrame({"x": [1]}), "a has no column 'y'; its columns: x"),
        (pd.DataFrame({"y": [1, None]}), "a: the target y is missing in 1 of 2 rows, first in row 2"),
        (pd.DataFrame({"y": [1.5, 2.0]}), "y at a has the value 1.5; wanted names or whole numbers"),
        (pd.DataFrame({"y": ["one", "one"]}), "y has 1 different values"),
        (pd.DataFrame({"y": range(2000)}), "y has 2000 different values; wanted 2 to 1000 classes"),
    ],
)
def test_an_impossible_target_is_refused(frame: pd.DataFrame, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        class_names({"a": frame}, target_name({"a": frame}, "y")[0])


def test_a_label_that_was_never_seen_is_refused() -> None:
    with pytest.raises(UsageError, match="test of a: the label 'c' was never seen in training; labels: a, b"):
        labels_of(pd.DataFrame({"y": ["a", "c"]}), "y", ("a", "b"), "test of a")
