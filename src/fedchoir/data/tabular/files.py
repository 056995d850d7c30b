"""Read CSV and Parquet files as data frames. Every error is one line that names the file."""

import csv
from io import StringIO
from pathlib import Path

import pandas as pd

from fedchoir.data.tabular.column import key
from fedchoir.utils.errors import UsageError

SUFFIXES = (".csv", ".parquet")
DELIMITERS = ",;\t|"
MISSING = ["?"]  # beside what pandas knows: empty, NA, nan, null and others


def read_table(path: Path) -> pd.DataFrame:
    """The table in a file, with one name per column and at least one row."""
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    with path.open("rb") as file:
        start = file.read(4)
    if not start:
        raise UsageError(f"{path}: the file is empty")
    if start[:1] == b"\x80":
        raise UsageError(
            f"{path}: a pickle file, which can run programs when it is read; save the table as CSV or Parquet"
        )
    return checked(_read_parquet(path) if start == b"PAR1" else _read_csv(path), str(path))


def checked(frame: pd.DataFrame, where: str) -> pd.DataFrame:
    """A table whose columns have one name each, and that has rows; ``where`` it is from, for errors."""
    names = [str(name).strip() for name in frame.columns]
    keys = [key(name) for name in names]
    if twice := [name for name in keys if keys.count(name) > 1]:
        raise UsageError(f"{where}: the column {twice[0]!r} occurs twice")
    if not len(frame):
        raise UsageError(f"{where}: a header and no rows")
    return frame.set_axis(names, axis=1)


def _read_csv(path: Path) -> pd.DataFrame:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{path}: neither UTF-8 text nor a Parquet file") from None
    header = text.lstrip().partition("\n")[0]
    if not header.strip():
        raise UsageError(f"{path}: the file is empty")
    if "\0" in header:
        raise UsageError(f"{path}: neither UTF-8 text nor a Parquet file")
    delimiter = max(DELIMITERS, key=header.count)
    names = next(csv.reader([header], delimiter=delimiter, skipinitialspace=True))
    try:
        frame = pd.read_csv(StringIO(text), sep=delimiter, na_values=MISSING, skipinitialspace=True, index_col=False)
    except (ValueError, pd.errors.ParserError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{path}: not a readable CSV file ({reason})") from None
    if len(names) != frame.shape[1]:
        raise UsageError(f"{path}: the header has a quoted name that continues on the next line")
    frame.columns = pd.Index([name.strip() for name in names])  # pandas renames columns that occur twice
    return frame


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise UsageError(f"{path}: Parquet needs pyarrow: pip install 'fedchoir[parquet]'") from None
    try:
        return parquet.read_table(path).to_pandas()
    except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
        reason = " ".join(str(error).split())
        raise UsageError(f"{path}: not a readable Parquet file ({reason})") from None


def own_test_file(path: Path) -> Path | None:
    """The client's own test file: ``a.test.csv`` beside ``a.csv``; None where there is none.

    >>> own_test_file(Path("no/such/a.csv")) is None
    True
    """
    candidates = (path.with_suffix(f".test{suffix}") for suffix in SUFFIXES)
    return next((candidate for candidate in candidates if candidate.is_file()), None)
