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

PART = re.compile(r"(bundle|results|checkpoints)-([0-9a-f]{8})-(\d+)-of-(\d+)\.tar\.xz")
END_BLOCKS = bytes(1024)  # of a tar archive
END = lzma.compress(END_BLOCKS, preset=1)
MAX_UNPACKED = 2**32  # bytes of an archive


def packed(files: Iterable[tuple[Path, str]]) -> bytes:
    """Files, each under a name, as a piece of a compressed archive: pieces one after the other and `END` are one. A
    link is packed as the file or folder that it leads to."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", dereference=True) as archive:
        for path, name in files:
            try:
                archive.add(path, name)
            except OSError as error:
                raise UsageError(f"{error.filename or path} cannot be packed: {error.strerror}") from None
        size = raw.tell()
    return lzma.compress(raw.getvalue()[:size], preset=1)


def write_archives(archives: Mapping[str, bytes], out: Path, part: int) -> list[Path]:
    """Write each archive in files of at most ``part`` bytes. Other archives in the folder stay."""
    out.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(b"".join(archives.values())).hexdigest()[:8]
    made: list[Path] = []
    for stem, pieces in archives.items():
        content = pieces + END if pieces else b""
        count = -(-len(content) // part)
        for number in range(count):
            made.append(out / f"{stem}-{name}-{number + 1}-of-{count}.tar.xz")
            atomic_write(made[-1], content[number * part : (number + 1) * part])
    return made


def parts_in(folder: Path, *stems: str) -> dict[Path, re.Match[str]]:
    """The files of archives in a folder."""
    found = ((path, PART.fullmatch(path.name)) for path in folder.glob("*.tar.xz"))
    return {path: match for path, match in found if match and match[1] in stems}


def read_archives(folder: Path) -> tuple[list[dict[str, bytes]], list[str]]:
    """The files of every save in a folder, by their path in the state, and a line for each archive that is damaged or
    not complete."""
    archives: dict[tuple[str, str, int], dict[int, Path]] = {}
    for path, match in parts_in(folder, "results", "checkpoints").items():
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
    with tarfile.open(fileobj=io.BytesIO(decompressed(content)), mode="r:") as archive:
        for member in archive.getmembers():
            parts, plain = PurePosixPath(member.name).parts, member.isfile() and not member.issparse()
            if parts[:1] != ("state",) or len(parts) == 1 or ".." in parts or not plain:
                raise UsageError(f"{source}: {member.name!r} is not a file of the state")
            taken = archive.extractfile(member)
            assert taken is not None
            files["/".join(parts[1:])] = taken.read()
    return files


def decompressed(content: bytes) -> bytes:
    """The pieces of an archive and its end. `lzma.decompress` would drop whatever follows the first damaged piece."""
    pieces: list[bytes] = []
    left = MAX_UNPACKED
    while content:
        stream = lzma.LZMADecompressor(lzma.FORMAT_XZ)
        pieces.append(stream.decompress(content, left + 1))
        left -= len(pieces[-1])
        if left < 0:
            raise lzma.LZMAError(f"it has more than {MAX_UNPACKED / 2**30:g} GiB when unpacked")
        if not stream.eof:
            raise EOFError("it is cut off")
        content = stream.unused_data
    if not pieces or pieces[-1] != END_BLOCKS:
        raise EOFError("its end is missing")
    return b"".join(pieces)
