"""The cache of client states: what fits stays in memory, what a checkpoint holds needs no file, and nothing is lost."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch

from fedchoir.engines.local import state_cache
from fedchoir.engines.local.state_cache import StateCache, state_bytes
from fedchoir.utils.errors import StorageError

State = dict[str, torch.Tensor]


def state(value: float) -> State:
    """40 bytes."""
    return {"w": torch.full((2, 4), float(value)), "n": torch.tensor(int(value))}


def files(folder: Path) -> list[str]:
    return sorted(file.stem for file in folder.glob("*")) if folder.exists() else []


def test_the_oldest_states_move_to_disk_and_come_back(tmp_path: Path) -> None:
    cache = StateCache(100, tmp_path / "cache")
    for k in range(5):
        cache.put(k, state(k))
    assert state_bytes(state(0)) == 40
    assert cache.nbytes == 80
    assert files(tmp_path / "cache") == ["client-00000", "client-00001", "client-00002"]
    for k in range(5):
        popped = cache.pop(k)
        assert all(torch.equal(popped[n], t) and popped[n].dtype == t.dtype for n, t in state(k).items())
    assert cache.nbytes == 0
    assert files(tmp_path / "cache") == []


def test_what_a_checkpoint_holds_is_not_written_again(tmp_path: Path) -> None:
    cache = StateCache(1000, tmp_path / "cache")
    for k in range(3):
        cache.put(k, state(k))
    cache.begin_checkpoint({0, 1, 2})
    cache.end_checkpoint(lambda name: state(10 + int(name[-1])))
    cache.mark_changed(2)
    assert [cache.is_checkpointed(k) for k in range(3)] == [True, True, False]
    cache.budget = 0
    cache.evict()
    assert files(tmp_path / "cache") == ["client-00002"]
    assert [int(cache.pop(k)["n"]) for k in range(3)] == [10, 11, 2]


def test_a_state_that_changed_replaces_the_one_in_the_checkpoint(tmp_path: Path) -> None:
    cache = StateCache(0, tmp_path)
    cache.put(7, state(1))
    cache.begin_checkpoint({7})
    cache.end_checkpoint(lambda name: state(1))
    cache.pop(7)
    cache.mark_changed(7)
    cache.put(7, state(2))
    assert int(cache.peek(7)["n"]) == int(cache.pop(7)["n"]) == 2


@pytest.mark.parametrize("budget", [0, 1000])
def test_a_dropped_client_leaves_nothing(budget: int, tmp_path: Path) -> None:
    cache = StateCache(budget, tmp_path)
    cache.put(1, state(1))
    cache.drop(1)
    assert cache.nbytes == 0
    assert files(tmp_path) == []


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(state_cache, "save_tensors", full)
    with pytest.raises(StorageError, match=r"client 3 could not be moved to .*No space left"):
        StateCache(0, tmp_path).put(3, state(1))


def test_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    (tmp_path / "client-00000.safetensors").write_bytes(b"incomplete")
    StateCache(0, tmp_path)
    assert files(tmp_path) == []


def test_without_a_folder_it_creates_a_temporary_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_cache.tempfile, "tempdir", str(tmp_path))
    cache = StateCache(0)
    cache.put(0, state(1))
    (folder,) = tmp_path.iterdir()
    assert files(folder) == ["client-00000"]
    del cache  # also without `close`
    assert not folder.exists()
