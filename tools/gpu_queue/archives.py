"""Compressed archives, cut into files that each fit on the way: ``results-ID-2-of-3.tar.xz``.

The id is a checksum of all that was written at once. So files of two archives in one folder are told apart, and the
checkpoints belong to the results with the same id.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import re
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from fedchoir.utils.errors import UsageError
from fedchoir.utils.io import atomic_write

PART = re.compile(r"(results|checkpoints)-([0-9a-f]{8})-(\d+)-of-(\d+)\.tar\.xz")
END = lzma.compress(bytes(1024), preset=1)  # of a tar archive


def packed(files: Iterable[tuple[Path, str]]) -> bytes:
    """Files, each under a name, as a piece of a compressed archive: pieces one after the other and `END` are one."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for path, name in files:
            archive.add(path, name)
        size = raw.tell()
    return lzma.compress(raw.getvalue()[:size], preset=1)


def write_archives(archives: Mapping[str, bytes], out: Path, part: int) -> list[Path]:
    """Write each archive in files of at most ``part`` bytes. Earlier archives of these names go when all is written."""
    out.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(b"".join(archives.values())).hexdigest()[:8]
    made: list[Path] = []
    for stem, pieces in archives.items():
        content = pieces + END if pieces else b""
        count = -(-len(content) // part)
        for number in range(count):
            made.append(out / f"{stem}-{name}-{number + 1}-of-{count}.tar.xz")
            atomic_write(made[-1], content[number * part : (number + 1) * part])
    for stem in archives:
        for old in set(out.glob(f"{stem}-*.tar.xz")) - set(made):
            old.unlink()
    return made


def read_archives(folder: Path) -> tuple[list[dict[str, bytes]], list[str]]:
    """The files of every save in a folder, by their path in the state, and a line for each archive that is damaged or
    not complete."""
    archives: dict[tuple[str, str, int], dict[int, Path]] = {}
    for path in folder.glob("*.tar.xz"):
        if match := PART.fullmatch(path.name):
            archives.setdefault((match[2], match[1], int(match[4])), {})[int(match[3])] = path
    if not archives:
        raise UsageError(f"{folder} has no results-ID-1-of-N.tar.xz, which save writes")
    saves: dict[str, dict[str, bytes]] = {}
    problems = []
    for (name, stem, total), parts in sorted(archives.items()):
        if missing := sorted(set(range(1, total + 1)) - parts.keys()):
            problems.append(f"{stem}-{name}, of which part {missing[0]} of {total} is missing in {folder}")
            continue
        try:
            content = b"".join(parts[number].read_bytes() for number in range(1, total + 1))
            files = unpacked(content, f"{folder}/{stem}-{name}")
        except (lzma.LZMAError, tarfile.TarError, EOFError, OSError) as error:
            problems.append(f"{stem}-{name} in {folder}, which is damaged: {error}")
        else:
            saves.setdefault(name, {}).update(files)
    return list(saves.values()), problems


def unpacked(content: bytes, source: str) -> dict[str, bytes]:
    """The files of an archive by their path in the state; nothing but files of the state may be in it."""
    files: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(content))) as archive:
        for member in archive.getmembers():
            first, *rest = PurePosixPath(member.name).parts
            if first != "state" or not rest or ".." in rest or not member.isfile():
                raise UsageError(f"{source}: {member.name!r} is not a file of the state")
            taken = archive.extractfile(member)
            assert taken is not None
            files["/".join(rest)] = taken.read()
    return files
