"""Atomic and private writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedchoir.utils.io import atomic_path, atomic_write, atomic_write_json, private_write


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "file.txt"
    atomic_write(path, "first")
    atomic_write(path, b"second")
    assert path.read_text() == "second"
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    atomic_write(path, "old")

    def fail_half_way() -> None:
        with atomic_path(path) as part:
            part.write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail_half_way()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_value_that_is_not_json_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    atomic_write_json(path, {"round": 3})
    with pytest.raises(TypeError):
        atomic_write_json(path, {"round": object()})
    assert json.loads(path.read_text()) == {"round": 3}


def test_private_files_are_their_owners_and_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    private_write(path, "one")
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        private_write(path, "two")
    atomic_write(path, "three", private=True)
    assert path.read_text() == "three"
    assert path.stat().st_mode & 0o777 == 0o600
