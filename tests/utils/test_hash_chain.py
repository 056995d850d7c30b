"""Append-only files: what was written is read, and a changed line is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedchoir.utils import hash_chain
from fedchoir.utils.hash_chain import BrokenChainError, HashChain


def filled(path: Path, count: int = 5) -> HashChain:
    chain = HashChain(path)
    for number in range(count):
        chain.append(number=number, text="ε" * 30)
    return chain


def test_lines_are_read_as_they_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hash_chain, "TAIL_BYTES", 7)  # shorter than a line
    chain = filled(tmp_path / "folder" / "chain.jsonl")
    assert [(line["number"], line["text"]) for line in chain] == [(number, "ε" * 30) for number in range(5)]
    assert list(HashChain(tmp_path / "none")) == []
    assert chain.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("change", "line"), [("edit", 3), ("remove", 2), ("swap", 1), ("garbage", 2), ("list", 4)])
def test_a_change_is_noticed_at_its_line(tmp_path: Path, change: str, line: int) -> None:
    chain = filled(tmp_path / "chain.jsonl")
    lines = chain.path.read_text().splitlines()
    if change == "edit":
        lines[1] = lines[1].replace('"number": 1', '"number": 7')  # the next line does not continue it
    elif change == "remove":
        del lines[1]
    elif change == "swap":
        lines[0], lines[1] = lines[1], lines[0]
    elif change == "garbage":
        lines[1] = "{"
    else:
        lines[3] = "[]"
    chain.path.write_text("\n".join(lines) + "\n")
    with pytest.raises(BrokenChainError) as error:
        list(chain)
    assert error.value.line == line
