"""Checkpoints: safetensors and JSON in a folder per round, activated by one atomic rename of ``latest.json``.

``DIR/checkpoint/latest.json`` names the folder of the last complete round. A process may be killed at any time: that
folder is always complete, and the next save removes incomplete ones.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from fedchoir.payload import load_tensors, save_tensors
from fedchoir.utils.errors import StorageError, UsageError
from fedchoir.utils.io import atomic_write_json, sync


def save(
    folder: Path,
    round_index: int,
    states: Iterable[tuple[str, Mapping[str, Tensor] | None]],
    facts: Mapping[str, Any],
) -> Path:
    """Write the state after a round: one file of tensors per name, and ``facts`` as JSON. Where the tensors are None,
    the file of the last checkpoint is reused. Returns the new folder."""
    target = folder / f"round-{round_index:05d}"
    before = latest(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        for name, tensors in states:
            file = target / f"{name}.safetensors"
            if tensors is None:
                assert before is not None, f"{name} was never saved"
                _reuse(before / file.name, file)
            else:
                save_tensors(file, tensors)
                sync(file)
        atomic_write_json(target / "facts.json", dict(facts))
        sync(target)
        atomic_write_json(folder / "latest.json", {"folder": target.name, "round": round_index})
    except (OSError, SafetensorError) as error:
        shutil.rmtree(target, ignore_errors=True)  # an incomplete checkpoint only wastes space
        raise StorageError(
            f"the checkpoint of round {round_index + 1} could not be written to {folder}: {error}"
        ) from None
    for old in folder.glob("round-*"):
        if old != target:
            shutil.rmtree(old, ignore_errors=True)
    return target


def latest(folder: Path) -> Path | None:
    """The folder of the last complete checkpoint, or None where there is none."""
    pointer = folder / "latest.json"
    if not pointer.exists():
        return None
    try:
        name = json.loads(pointer.read_text())["folder"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise UsageError(f"{pointer} is damaged ({error}); start the run again without --resume") from None
    if not isinstance(name, str) or Path(name).name != name or not (folder / name).is_dir():
        raise UsageError(f"{pointer} names {name!r}, which is not a checkpoint; start again without --resume")
    return folder / name


def load(checkpoint: Path, name: str) -> dict[str, Tensor]:
    return load_tensors(checkpoint / f"{name}.safetensors")


def facts(checkpoint: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((checkpoint / "facts.json").read_text())
    return loaded


def _reuse(old: Path, new: Path) -> None:
    try:
        new.hardlink_to(old)
    except OSError:  # some file systems have no hard links
        shutil.copyfile(old, new)
        sync(new)
