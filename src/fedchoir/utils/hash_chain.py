"""An append-only file of JSON lines. Each line holds the hash of the line before it, so a change is noticed."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TAIL_BYTES = 64 * 2**10  # read at a time from the end of the file, to find its last line


class BrokenChainError(ValueError):
    """A line was changed or removed. ``line`` is its number, from 1."""

    def __init__(self, line: int) -> None:
        super().__init__(f"line {line} was changed, or a line before it was removed")
        self.line = line


class HashChain:
    """Lines of JSON in one file that only its owner can read. Lines cut off at the end are not noticed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, **fields: Any) -> None:
        """Add a line and write it to disk."""
        text = json.dumps({**fields, "previous": _hash(self._last_line())}, sort_keys=True, ensure_ascii=False)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, (text + "\n").encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """All lines from the first. Raises `BrokenChainError` at a line that does not continue the one before."""
        if not self.path.exists():
            return
        before = b""
        with self.path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                try:
                    line = json.loads(raw)
                    intact = isinstance(line, dict) and line["previous"] == _hash(before)
                except (ValueError, KeyError, RecursionError):
                    intact = False
                if not intact:
                    raise BrokenChainError(number)
                yield line
                before = raw.rstrip(b"\n")

    def _last_line(self) -> bytes:
        if not self.path.exists():
            return b""
        with self.path.open("rb") as file:
            position = file.seek(0, os.SEEK_END)
            tail = b""
            while position and b"\n" not in tail.rstrip(b"\n"):
                start = max(0, position - TAIL_BYTES)
                file.seek(start)
                tail = file.read(position - start) + tail
                position = start
        return tail.rstrip(b"\n").rpartition(b"\n")[2]


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest() if line else ""
