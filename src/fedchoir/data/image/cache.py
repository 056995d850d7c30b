"""A cache of decoded images on disk, for sets that are too large for memory.

A set has a folder with ``rows.bin`` and ``hashes.bin`` (`RowFile`) and ``header.json``. The header is written after
every chunk of images: a build that was stopped continues there. It records the files that the images come from (name,
size and time of change), so a cache of other files is built again, and checksums of the hashes and of itself, so a
damaged cache is too.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from filelock import FileLock

from fedchoir.data.image.decoding import Decoder, Remarks
from fedchoir.data.mapped import HASH_BYTES, HASHES, ROWS, RowFile, row_hash
from fedchoir.utils.errors import UsageError
from fedchoir.utils.io import atomic_write_json, private_write

VERSION = 1
HEADER = "header.json"
CHUNK_BYTES = 32 << 20  # written at a time
THREADS = min(16, os.cpu_count() or 1)

Tick = Callable[[int], None]
"""Called with the number of images that are decoded."""


@dataclass(frozen=True)
class Header:
    """The images that a cache has, and the files that they come from."""

    shape: tuple[int, int, int]  # of an image
    done: int  # images that are written
    files: str  # `fingerprint` of their files
    hashes: str  # sha256 of their hashes
    remarks: Remarks

    def write(self, folder: Path) -> None:
        content = asdict(self)
        atomic_write_json(folder / HEADER, {**content, "checksum": _checksum(content)})

    @classmethod
    def read(cls, folder: Path) -> Header | None:
        """None if there is none, or if it does not describe what the folder has."""
        try:
            content = json.loads((folder / HEADER).read_text())
            if content.pop("checksum") != _checksum(content):
                return None
            remarks = Remarks(**content.pop("remarks"))
            header = cls(**{**content, "shape": tuple(content["shape"])}, remarks=remarks)
            rows, hashes = (folder / ROWS).stat().st_size, (folder / HASHES).read_bytes()[: header.done * HASH_BYTES]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        intact = rows >= header.done * header.row_bytes and hashlib.sha256(hashes).hexdigest() == header.hashes
        return header if intact else None

    @property
    def row_bytes(self) -> int:
        channels, height, width = self.shape
        return channels * height * width


def cached(
    paths: Sequence[Path], decoder: Decoder, folder: Path, tick: Tick
) -> tuple[RowFile, Remarks, tuple[str, ...]]:
    """The decoded images of ``paths`` in ``folder``, built or completed if needed, and a note if it was built again."""
    shape = (3, decoder.resize.height, decoder.resize.width)
    notes: tuple[str, ...] = ()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # it has private images
        with FileLock(folder / "lock", mode=0o600):  # two runs may need the same images at once
            before = (folder / HEADER).exists()
            header = Header.read(folder)
            if header is None or header.files != fingerprint(paths[: header.done], decoder).hexdigest():
                if before:
                    notes = (_why_again(folder, header),)
                header = _emptied(folder, shape, decoder)
            if header.done < len(paths):
                header = _build(folder, header, paths, decoder, tick)
    except OSError as error:
        raise UsageError(f"cache {folder} cannot be written: {error.strerror}; choose another with --cache") from error
    return RowFile(str(folder), len(paths), shape), header.remarks, notes


def fingerprint(paths: Sequence[Path], decoder: Decoder) -> hashlib._Hash:
    """A hash of the decoder's settings and of the name, size and time of change of every file."""
    digest = hashlib.sha256(repr((VERSION, decoder)).encode())
    _add(digest, paths)
    return digest


def _add(digest: hashlib._Hash, paths: Sequence[Path]) -> None:
    for path in paths:
        try:
            stat = os.stat(path)  # noqa: PTH116  (Path.stat takes longer, and there may be 100,000 files)
        except OSError:
            raise UsageError(f"{path}: no such file") from None
        digest.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode(errors="surrogateescape"))


def _why_again(folder: Path, found: Header | None) -> str:
    reason = "was damaged" if found is None else "had images of files that have changed"
    return f"the cache {folder} {reason}; it was built again"


def _emptied(folder: Path, shape: tuple[int, int, int], decoder: Decoder) -> Header:
    """A new cache. Processes that read the old files keep them."""
    (folder / HEADER).unlink(missing_ok=True)
    for name in (ROWS, HASHES):
        (folder / name).unlink(missing_ok=True)
        private_write(folder / name, b"")
    return Header(shape, 0, fingerprint([], decoder).hexdigest(), hashlib.sha256().hexdigest(), Remarks())


def _build(folder: Path, header: Header, paths: Sequence[Path], decoder: Decoder, tick: Tick) -> Header:
    """Decode the images that are missing, and update the header after every chunk."""
    _check_space(folder, header, len(paths))
    files = fingerprint(paths[: header.done], decoder)
    size = max(1, CHUNK_BYTES // header.row_bytes)

    def decoded(path: Path) -> tuple[np.ndarray, bytes, Remarks]:
        row, remarks = decoder(path)
        return row, row_hash(row), remarks

    with (
        (folder / ROWS).open("r+b") as rows,
        (folder / HASHES).open("r+b") as hashes,
        ThreadPoolExecutor(THREADS) as pool,
    ):
        for file, width in ((rows, header.row_bytes), (hashes, HASH_BYTES)):
            file.truncate(header.done * width)  # without a chunk that was not finished
        rows.seek(0, os.SEEK_END)
        digest = hashlib.sha256(hashes.read())
        while header.done < len(paths):
            chunk = paths[header.done : header.done + size]
            _add(files, chunk)
            remarks = header.remarks
            for number, (row, found, more) in enumerate(pool.map(decoded, chunk), header.done + 1):
                rows.write(row.data)
                hashes.write(found)
                digest.update(found)
                remarks += more
                tick(number)
            _sync(rows, hashes)
            header = Header(header.shape, number, files.hexdigest(), digest.hexdigest(), remarks)
            header.write(folder)
    return header


def _check_space(folder: Path, header: Header, count: int) -> None:
    needed, free = (count - header.done) * header.row_bytes, shutil.disk_usage(folder).free
    if needed > free:
        raise UsageError(
            f"cache {folder}: {count} images of {header.shape[1]}×{header.shape[2]} pixels need {needed / 1e9:.1f} GB "
            f"of disk, but {free / 1e9:.1f} GB are free; choose another folder with --cache"
        )


def _sync(*files: BinaryIO) -> None:
    for file in files:
        file.flush()
        os.fsync(file.fileno())


def _checksum(content: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
