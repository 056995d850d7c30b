"""Texts from JSON lines, CSV and plain text."""

import gzip
import json
from pathlib import Path

import pytest

from fedchoir.data.text.files import read_texts
from fedchoir.utils.errors import UsageError

ROWS = [{"text": "first\u2028line", "label": "p"}, {"text": 'second, "quoted"', "label": "n"}]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)


def test_every_format_gives_the_same_texts(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(LINES)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(LINES.encode()))
    (tmp_path / "a.csv").write_text('label,text\np,"first\u2028line"\nn,"second, ""quoted"""\n')
    (tmp_path / "a.txt").write_text('first\u2028line\n\nsecond, "quoted"')
    for name in ("a.jsonl", "a.jsonl.gz", "a.csv"):
        found = read_texts(tmp_path / name)
        assert found.texts == [row["text"] for row in ROWS]
        assert found.labels == ["p", "n"]
    unlabeled = read_texts(tmp_path / "a.txt", labelled=False)
    assert (unlabeled.texts, unlabeled.labels) == ([row["text"] for row in ROWS], None)


def test_columns_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"body": "x", "stars": 5, "text": "other", "split": "train"}) + "\n")
    found = read_texts(path, "body", "stars")
    assert (found.texts, found.labels, found.splits) == (["x"], ["5"], ["train"])


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.jsonl", b"", "holds no text"),
        ("a.jsonl", b'{"text": "a"}\n', r"none of its columns \(text\) is called label, target, y, class; set target"),
        ("a.jsonl", b'{"words": "a", "label": 1}\n', "set text_column"),
        ("a.jsonl", b'{"text": "a", "label": 1}\n{"text": 3', "line 2 is not JSON"),
        ("a.jsonl", b"[1]\n", "line 1 is not an object"),
        ("a.jsonl", b'{"text": null, "label": 1}\n', "record 1 has no text or number in 'text'"),
        ("a.jsonl", b'{"text": "a", "label": 1, "split": "dev"}\n', "split has the value 'dev'; wanted train or test"),
        ("a.jsonl", b"\xff\xfe", "not a readable file of JSON lines"),
        ("a.jsonl.gz", b"no gzip", "not a readable file of JSON lines"),
        ("a.csv", b"", "not a readable CSV file"),
        ("a.csv", b'text,label\n"a', "not a readable CSV file"),
    ],
)
def test_a_bad_file_is_one_line(name: str, content: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=why) as caught:
        read_texts(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(LINES)
    with pytest.raises(UsageError, match="text_column = 'body' is not one of its columns: text, label"):
        read_texts(tmp_path / "a.jsonl", "body")
