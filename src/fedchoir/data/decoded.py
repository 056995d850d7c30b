"""Decoded files that the runs of one process share.

A worker of a sweep executes several runs, most of them on the same data, so it keeps what it has decoded (`DECODED`). A
single run keeps nothing. What is kept must not be changed by whoever gets it: samples never are.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

Content = TypeVar("Content")


class Decoded:
    """The contents that were used last, up to a number of bytes. Files that have changed are decoded again."""

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()

    def get(self, files: Iterable[Path], how: Hashable, decode: Callable[[], Content]) -> Content:
        """What ``decode`` makes of the files; ``how`` is all else that determines it."""
        identity = _identity(files) if self.limit else None
        if identity is None:
            return decode()
        key = (identity, how)
        if key not in self._kept:
            content = decode()
            self._kept[key] = content, size_of(content)
        self._kept.move_to_end(key)
        content = self._kept[key][0]
        while sum(size for _, size in self._kept.values()) > self.limit:
            self._kept.popitem(last=False)
        return content


DECODED = Decoded()
"""Of this process. `fedchoir.experiments.sweep_worker` gives it a limit."""


def size_of(content: Any) -> int:
    """Bytes of the tensors in a content.

    >>> import torch
    >>> size_of((torch.zeros(10), "note", [torch.zeros(5, dtype=torch.uint8)]))
    45
    """
    if isinstance(content, Tensor):
        return content.nbytes
    if is_dataclass(content):
        return sum(size_of(getattr(content, field.name)) for field in fields(content))
    return sum(map(size_of, content)) if isinstance(content, tuple | list) else 0


def _identity(files: Iterable[Path]) -> bytes | None:
    """A hash of the name, size and time of change of every file; None where one is missing."""
    digest = hashlib.sha256()
    for path in files:
        try:
            stat = path.stat()
        except OSError:
            return None
        digest.update(f"{path.absolute()}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.digest()
