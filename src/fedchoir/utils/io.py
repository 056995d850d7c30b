"""Files that are written whole or not at all, files that only their owner can read, and TOML files of users."""

import json
import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedchoir.utils.errors import UsageError


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; when the block ends it is synced to disk and renamed to ``path``.

    A process that is killed, or a write that fails, leaves the old file as it was. The temporary name ends in
    ``.part`` and contains the process id, so two processes may write the same file. The folder is created if needed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield part
        sync(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    sync(path.parent)


def atomic_write(path: Path, content: str | bytes, *, private: bool = False) -> None:
    """Write a file whole or not at all. ``private``: readable by its owner only (mode 0600)."""
    with atomic_path(path) as part:
        if private:
            private_write(part, content)
        else:
            part.write_bytes(_encoded(content))


def atomic_write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, whole or not at all."""
    atomic_write(path, json.dumps(value, indent=1) + "\n")


def private_write(path: Path, content: str | bytes, *, mode: int = 0o600) -> None:
    """Create a file that only its owner can read; FileExistsError if there is one already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(_encoded(content))


def read_toml(path: Path) -> dict[str, Any]:
    """The values of a TOML file that a user wrote."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits and deep nesting among them
        raise UsageError(f"{path} is not valid TOML: {error}") from None


def sync(path: Path) -> None:
    """Make the system write a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _encoded(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content
