"""Read texts from JSON lines and CSV files. Every error names the file, and where possible the line."""

import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedchoir.utils.errors import UsageError

TEXT_COLUMNS = ("text", "sentence", "review", "content", "document")
LABEL_COLUMNS = ("label", "target", "y", "class")
SPLIT_COLUMN = "split"
SUFFIXES = (".jsonl", ".jsonl.gz")


@dataclass(frozen=True)
class Texts:
    """Texts of one file with their class names (None: unlabeled) and splits (None: there is no such column)."""

    texts: list[str]
    labels: list[str] | None
    splits: list[str] | None


def read_texts(
    path: Path, text_column: str = "", target: str = "", *, labelled: bool = True, strict: bool = True
) -> Texts:
    """Read a file of texts.

    The columns are those named, else the first of `TEXT_COLUMNS` and of `LABEL_COLUMNS` that the file has. A file
    without the named text column is an error if ``strict``. A column ``split`` with the values train and test makes a
    test split.
    """
    rows = read_rows(path)
    text = _column(path, rows, text_column, TEXT_COLUMNS, "text_column", strict)
    label = _column(path, rows, target, LABEL_COLUMNS, "target") if labelled else ""
    return Texts(
        texts=[_value(path, i, row, text) for i, row in enumerate(rows, start=1)],
        labels=[_value(path, i, row, label) for i, row in enumerate(rows, start=1)] if labelled else None,
        splits=_splits(path, rows),
    )


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The records of a file: JSON lines, CSV, or plain text with one text a line."""
    kinds = {".csv": _csv_rows, ".txt": _plain_rows}
    rows = kinds.get(path.suffix.lower(), _json_rows)(path)
    if not rows:
        raise UsageError(f"{path}: holds no text")
    return rows


def _plain_rows(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not a readable file of UTF-8 text ({error})") from None
    return [{"text": line} for line in lines if line.strip()]


def _json_rows(path: Path) -> list[dict[str, Any]]:
    try:
        content = path.read_bytes()
        lines = (gzip.decompress(content) if path.suffix == ".gz" else content).decode().split("\n")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not a readable file of JSON lines ({error})") from None
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UsageError(f"{path}: line {number} is not JSON ({error.msg})") from None
        if not isinstance(row, dict):
            raise UsageError(f"{path}: line {number} is not an object such as {{'text': …, 'label': …}}")
        rows.append(row)
    return rows


def _csv_rows(path: Path) -> list[dict[str, Any]]:
    import pandas as pd  # only here: it takes long to import

    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError, UnicodeDecodeError) as error:  # pandas' parser errors are ValueErrors
        raise UsageError(f"{path}: not a readable CSV file ({' '.join(str(error).split())})") from None
    return [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]


def _column(
    path: Path, rows: Sequence[dict[str, Any]], named: str, usual: tuple[str, ...], option: str, strict: bool = True
) -> str:
    """The column of an option: the one named, or the first of the usual names."""
    known = rows[0].keys()
    if named in known:
        return named
    if named and strict:
        raise UsageError(f"{path}: {option} = {named!r} is not one of its columns: {', '.join(known)}")
    found = next((name for name in usual if name in known), None)
    if found is None:
        wanted, hint = (f"{named} ({option}), ", "") if named else ("", f"; set {option}")
        raise UsageError(f"{path}: none of its columns ({', '.join(known)}) is called {wanted}{', '.join(usual)}{hint}")
    return found


def _value(path: Path, number: int, row: dict[str, Any], column: str) -> str:
    value = row.get(column)
    if isinstance(value, bool | int | float):
        return str(value)
    if not isinstance(value, str):
        raise UsageError(f"{path}: record {number} has no text or number in {column!r}")
    return value


def _splits(path: Path, rows: Sequence[dict[str, Any]]) -> list[str] | None:
    if SPLIT_COLUMN not in rows[0]:
        return None
    splits = [str(row.get(SPLIT_COLUMN)) for row in rows]
    if other := next((split for split in splits if split not in ("train", "test")), None):
        raise UsageError(f"{path}: {SPLIT_COLUMN} has the value {other!r}; wanted train or test")
    return splits
