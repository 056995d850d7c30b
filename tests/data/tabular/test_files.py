"""Reading CSV and Parquet files; every damaged file gives one line that names it."""

import pickle
from pathlib import Path

import pandas as pd
import pytest

from fedchoir.data.tabular.files import own_test_file, read_table
from fedchoir.utils.errors import UsageError


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_csv_with_any_usual_delimiter(tmp_path: Path, delimiter: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"\ufeff age {delimiter}sex\n50{delimiter}F\n?{delimiter} \n", encoding="utf-8")
    frame = read_table(path)
    assert list(frame.columns) == ["age", "sex"]
    assert frame["age"].isna().tolist() == [False, True]
    assert frame["sex"].isna().tolist() == [False, True]


def test_parquet_equals_csv(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"age": [50.0, None], "sex": ["F", "M"], "seen": pd.to_datetime(["2024-01-01", "2024-01-02"])})
    frame.to_parquet(tmp_path / "a.parquet")
    pd.testing.assert_frame_equal(read_table(tmp_path / "a.parquet"), frame, check_dtype=False)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b" \n\n", "the file is empty"),
        (b"age,sex\n", "a header and no rows"),
        (b"age,age\n1,2\n", "the column 'age' occurs twice"),
        (b"a,b\n1,2\n1,2,3,4\n", "not a readable CSV file"),
        (b"\xff\xfe\x00\x01binary\x00", "neither UTF-8 text nor a Parquet file"),
        (b"abc\x00\x00\x01,x\n1,2\n", "neither UTF-8 text nor a Parquet file"),
        (b"PAR1 this is none", "not a readable Parquet file"),
        (pickle.dumps({"a": [1]}), "a pickle file"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=reason) as caught:
        read_table(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_own_test_file(tmp_path: Path) -> None:
    assert own_test_file(tmp_path / "a.csv") is None
    (tmp_path / "a.test.csv").write_text("x\n1\n")
    assert own_test_file(tmp_path / "a.csv") == tmp_path / "a.test.csv"
    assert own_test_file(tmp_path / "a.parquet") == tmp_path / "a.test.csv"
    with pytest.raises(UsageError, match="no such file"):
        read_table(tmp_path / "b.csv")
