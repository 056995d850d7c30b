"""Checkpoints are complete or absent."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import Stop, StopAfter, assert_same, run_folder

from fedchoir import Experiment, run
from fedchoir.core import checkpoint
from fedchoir.utils.errors import StorageError, UsageError


def states(value: float) -> list[tuple[str, dict[str, torch.Tensor]]]:
    return [("server", {}), ("client-0", {"w": torch.full((3,), value)})]


def test_save_and_load(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path) is None
    checkpoint.save(tmp_path, 0, states(1.0), {"round": 0})
    checkpoint.save(tmp_path, 1, states(2.0), {"round": 1})
    saved = checkpoint.latest(tmp_path)
    assert saved is not None
    assert checkpoint.load(saved, "client-0")["w"].tolist() == [2.0] * 3
    assert checkpoint.load(saved, "server") == {}
    assert checkpoint.facts(saved) == {"round": 1}
    checkpoint.save(tmp_path, 2, states(3.0), {"round": 2})
    assert sorted(path.name for path in tmp_path.glob("round-*")) == ["round-00001", "round-00002"]  # the last two


@pytest.mark.parametrize("fail_at", ["client-0", "facts.json", "latest.json"])
def test_a_full_disk_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail_at: str) -> None:
    checkpoint.save(tmp_path, 0, states(1.0), {"round": 0})
    save_tensors, write_json = checkpoint.save_tensors, checkpoint.atomic_write_json

    def full(path: Path, *rest: object) -> None:
        if fail_at in path.name:
            path.with_name(path.name + ".part").write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        (save_tensors if path.suffix == ".safetensors" else write_json)(path, *rest)  # type: ignore[operator]

    monkeypatch.setattr(checkpoint, "save_tensors", full)
    monkeypatch.setattr(checkpoint, "atomic_write_json", full)
    with pytest.raises(StorageError, match="No space left"):
        checkpoint.save(tmp_path, 1, states(2.0), {"round": 1})
    monkeypatch.undo()
    saved = checkpoint.latest(tmp_path)
    assert saved is not None
    assert checkpoint.facts(saved) == {"round": 0}
    assert checkpoint.load(saved, "client-0")["w"].tolist() == [1.0] * 3
    checkpoint.save(tmp_path, 1, states(2.0), {"round": 1})  # and the next attempt works
    assert checkpoint.facts(checkpoint.latest(tmp_path)) == {"round": 1}  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "{", '{"folder": "../other"}', '{"folder": 3}', '{"folder": "round-00009"}'])
def test_a_damaged_pointer_is_named(tmp_path: Path, text: str) -> None:
    checkpoint.save(tmp_path, 0, states(1.0), {"round": 0})
    (tmp_path / "latest.json").write_text(text)
    with pytest.raises(UsageError, match=r"latest\.json"):
        checkpoint.latest(tmp_path)


def test_a_damaged_tensor_file_is_named(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 0, states(1.0), {"round": 0})
    saved = checkpoint.latest(tmp_path)
    assert saved is not None
    path = saved / "client-0.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(UsageError, match=r"client-0\.safetensors is not a readable"):
        checkpoint.load(saved, "client-0")


def test_unchanged_states_are_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a hard link where the file system has them, else by a copy; the last two folders are kept."""
    checkpoint.save(tmp_path, 0, states(1.0), {})
    for round_index in (1, 2):
        saved = checkpoint.save(tmp_path, round_index, [("server", {}), ("client-0", None)], {})
        assert checkpoint.load(saved, "client-0")["w"].tolist() == [1.0] * 3
        monkeypatch.setattr(Path, "hardlink_to", _no_links)
    assert len(list(tmp_path.glob("round-*"))) == 2


def _no_links(*_: object) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


def test_a_full_disk_stops_the_run_with_the_last_checkpoint_intact(
    small: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment, straight = small("fedmd", rounds=3, checkpoint_every=1), small("fedmd", "straight", rounds=3)
    save, saved = checkpoint.save_tensors, []

    def full(path: Path, tensors: Any) -> None:
        saved.append(path)
        if len(saved) > 6:  # in the middle of the second checkpoint
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        save(path, tensors)

    monkeypatch.setattr(checkpoint, "save_tensors", full)
    with pytest.raises(StorageError, match=r"round 2 could not be written.*No space left"):
        run(experiment)
    folder = checkpoint.latest(experiment.out / "checkpoint")
    assert folder is not None
    assert checkpoint.facts(folder)["round"] == 0
    assert [p.name for p in folder.parent.glob("round-*")] == ["round-00000"]
    monkeypatch.undo()
    assert run(experiment, resume=True).accuracy == run(straight).accuracy


# -- checksums ---------------------------------------------------------------------------------------------------------


def damage(path: Path, how: str, rng: random.Random) -> None:
    """What a failing disk or a careless person may do to a file."""
    raw = bytearray(path.read_bytes())
    if how == "flip" and raw:
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    elif how == "cut":
        raw = raw[: rng.randrange(len(raw))]
    elif how == "zero":
        start = rng.randrange(len(raw))
        raw[start : start + 16] = bytes(len(raw[start : start + 16]))
    elif how == "append":
        raw += bytes(rng.randrange(256) for _ in range(8))
    else:
        path.unlink()
        return
    path.write_bytes(bytes(raw))


@pytest.mark.parametrize("seed", range(200))
def test_no_corruption_goes_unnoticed(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    checkpoint.save(tmp_path, 0, states(1.0), {"round": 0})
    checkpoint.save(tmp_path, 1, states(2.0), {"round": 1})
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    path = rng.choice(files)
    before = path.read_bytes()
    damage(path, rng.choice(["flip", "cut", "zero", "append", "remove"]), rng)
    found = checkpoint.newest_intact(tmp_path)  # one of the two is always intact
    assert found is not None
    saved, note = found
    number = checkpoint.facts(saved)["round"]
    assert checkpoint.load(saved, "client-0")["w"].tolist() == [number + 1.0] * 3
    harmless = path.name == "latest.json" or path.parent.name == "round-00000"
    unchanged = path.exists() and path.read_bytes() == before
    if number == 0:
        assert "resumed from round-00000 instead" in note
    else:
        assert harmless or unchanged, path  # what is wrong with the newest one never goes unnoticed


def test_the_run_stops_where_no_checkpoint_is_intact(tmp_path: Path) -> None:
    saved = checkpoint.save(tmp_path, 0, states(1.0), {"round": 0})
    (saved / "client-0.safetensors").write_bytes(b"")
    with pytest.raises(UsageError, match="no older checkpoint is intact; start the run again"):
        checkpoint.newest_intact(tmp_path)


def test_resume_falls_back_and_ends_with_the_same_numbers(small: Callable[..., Experiment]) -> None:
    whole, broken = small("fccl+", "whole", rounds=3), small("fccl+", "broken", rounds=3, checkpoint_every=1)
    first = run(whole)
    with pytest.raises(Stop):
        run(broken, observers=[StopAfter(1)])
    folder = run_folder(broken) / "checkpoint"
    newest = checkpoint.latest(folder)
    assert newest is not None
    path = newest / "client-00001.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 16  # one bit of one weight
    path.write_bytes(bytes(raw))
    second = run(broken, resume=True)
    assert any("client-00001.safetensors is damaged" in note for note in second.notes)
    assert second.accuracy == first.accuracy
    assert_same(whole, broken)
