"""Checkpoints: safetensors and JSON in a folder per round, activated by one atomic rename of ``latest.json``.

A process may be killed at any time: the folder that ``latest.json`` names is always complete. Every file has a SHA-256
checksum in ``manifest.json``, and the manifest has one in ``latest.json``. The last two checkpoints are kept, so that a
run whose newest one was damaged on disk can resume from the one before.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from torch import Tensor

from fedchoir.payload import load_tensors, save_tensors
from fedchoir.utils.errors import StorageError, UsageError
from fedchoir.utils.io import atomic_write_json, sync
from fedchoir.utils.text import printable

MANIFEST = "manifest.json"
States = Iterable[tuple[str, Mapping[str, Tensor] | None]]
"""Tensors by the name of their file; None for a file that is the same as in the checkpoint before."""


class Snapshot(NamedTuple):
    """What `save` writes."""

    round_index: int
    states: States
    facts: Mapping[str, Any]
    base: Path | None = None


def save(
    folder: Path,
    round_index: int,
    states: States,
    facts: Mapping[str, Any],
    base: Path | None = None,
) -> Path:
    """Write the state after a round: one file of tensors per name, and ``facts`` as JSON. Where the tensors are None,
    the file of ``base`` is reused, which is the checkpoint that the run wrote or loaded last (default: the newest).
    Returns the new folder."""
    target = folder / f"round-{round_index:05d}"
    base = base or latest(folder)
    checksums: dict[str, str] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        known = _checksums(base) if base else {}
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        for name, tensors in states:
            file = target / f"{name}.safetensors"
            if tensors is None:
                assert base, f"{name} was never saved"
                _reuse(base / file.name, file)
                checksums[file.name] = known[file.name]
            else:
                save_tensors(file, tensors)
                sync(file)
                checksums[file.name] = _checksum(file)
        atomic_write_json(target / "facts.json", dict(facts))
        checksums["facts.json"] = _checksum(target / "facts.json")
        atomic_write_json(target / MANIFEST, checksums)
        sync(target)
        atomic_write_json(folder / "latest.json", {**_entry(target), "previous": _entry(base) if base else None})
    except BaseException as error:
        shutil.rmtree(target, ignore_errors=True)  # an incomplete checkpoint only wastes space
        if isinstance(error, OSError | SafetensorError):
            raise StorageError(
                f"the checkpoint of round {round_index + 1} could not be written to {folder}: {error}"
            ) from None
        raise
    for old in folder.glob("round-*"):
        if old not in (target, base):
            shutil.rmtree(old, ignore_errors=True)
    return target


def latest(folder: Path) -> Path | None:
    """The folder of the last complete checkpoint, or None where there is none. Its content is not verified."""
    pointer = _pointer(folder)
    return folder / pointer["folder"] if pointer else None


def newest_intact(folder: Path) -> tuple[Path, str] | None:
    """The newest checkpoint whose files all match their checksums, and a note if it is not the newest of all.

    None where there is no checkpoint. Raises `UsageError` if every checkpoint is damaged.
    """
    damage = ""
    for path, checksum in _candidates(folder):
        problem = _damage(path, checksum)
        if not problem:
            return path, f"{damage}; resumed from {path.name} instead" if damage else ""
        damage = damage or problem
    if damage:
        raise UsageError(f"{damage}, and no older checkpoint is intact; start the run again without --resume")
    return None


def load(checkpoint: Path, name: str) -> dict[str, Tensor]:
    return load_tensors(checkpoint / f"{name}.safetensors")


def facts(checkpoint: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((checkpoint / "facts.json").read_text())
    return loaded


def _entry(checkpoint: Path) -> dict[str, Any]:
    """How ``latest.json`` names a checkpoint."""
    number = int(checkpoint.name.removeprefix("round-"))
    return {"folder": checkpoint.name, "round": number, "sha256": _checksum(checkpoint / MANIFEST)}


def _pointer(folder: Path) -> dict[str, Any]:
    """The content of ``latest.json``; empty where there is none."""
    path = folder / "latest.json"
    if not path.exists():
        return {}
    try:
        pointer: dict[str, Any] = json.loads(path.read_text())
        names = [pointer["folder"], *([pointer["previous"]["folder"]] if pointer.get("previous") else [])]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(
            f"{path} is damaged ({printable(repr(error))}); start the run again without --resume"
        ) from None
    if not all(isinstance(name, str) and re.fullmatch(r"round-\d{5,9}", name) for name in names):
        raise UsageError(f"{path} names {printable(repr(names))}, not checkpoints; start again without --resume")
    if not (folder / names[0]).is_dir():
        raise UsageError(f"{path} names {names[0]!r}, which is not a checkpoint; start again without --resume")
    return pointer


def _candidates(folder: Path) -> Iterator[tuple[Path, str | None]]:
    """Folders of checkpoints, the newest first, with the checksum that their manifest should have, if it is known."""
    try:
        pointer = _pointer(folder)
    except UsageError:
        pointer = {}
    if not pointer:  # lost or damaged: every folder is tried whose last file was written
        yield from ((path.parent, None) for path in sorted(folder.glob(f"round-*/{MANIFEST}"), reverse=True))
    for entry in (pointer, pointer.get("previous")):
        if entry:
            yield folder / entry["folder"], entry.get("sha256")


def _damage(checkpoint: Path, checksum: str | None) -> str:
    """What is wrong with a checkpoint; empty where all of it matches its checksums."""
    try:
        if checksum is not None and _checksum(checkpoint / MANIFEST) != checksum:
            return f"{checkpoint / MANIFEST} is damaged"
        checksums = _checksums(checkpoint)
        if not {"facts.json", "server.safetensors"} <= set(checksums):
            return f"{checkpoint / MANIFEST} is damaged"
        for name, expected in checksums.items():
            if Path(name).name != name or _checksum(checkpoint / name) != expected:
                return f"{checkpoint / name} is damaged: its checksum differs"
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        return f"{checkpoint} is damaged: {printable(str(error))}"
    return ""


def _checksums(checkpoint: Path) -> dict[str, str]:
    loaded: dict[str, str] = json.loads((checkpoint / MANIFEST).read_text())
    return loaded


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _reuse(old: Path, new: Path) -> None:
    try:
        new.hardlink_to(old)
    except OSError:  # some file systems have no hard links
        shutil.copyfile(old, new)
        sync(new)
