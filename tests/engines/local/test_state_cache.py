"""States at rest: what fits stays in memory, what the checkpoint has needs no file, and nothing is lost."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch

from fedchoir.engines.local import state_cache as resting
from fedchoir.engines.local.state_cache import StateCache, nbytes
from fedchoir.utils.errors import StorageError

State = dict[str, torch.Tensor]


def state(value: float) -> State:
    """Forty bytes."""
    return {"w": torch.full((2, 4), float(value)), "n": torch.tensor(int(value))}


def files(folder: Path) -> list[str]:
    return sorted(file.stem for file in folder.glob("*")) if folder.exists() else []


def test_those_who_rest_longest_go_to_disk_and_come_back(tmp_path: Path) -> None:
    rest = StateCache(100, tmp_path / "rest")
    for k in range(5):
        rest.put(k, state(k))
    assert nbytes(state(0)) == 40
    assert rest.nbytes == 80
    assert files(tmp_path / "rest") == ["client-00000", "client-00001", "client-00002"]
    for k in range(5):
        back = rest.get(k)
        assert all(torch.equal(back[n], t) and back[n].dtype == t.dtype for n, t in state(k).items())
    assert rest.nbytes == 0
    assert files(tmp_path / "rest") == []


def test_what_a_checkpoint_holds_is_not_written_again(tmp_path: Path) -> None:
    rest = StateCache(1000, tmp_path / "rest")
    for k in range(3):
        rest.put(k, state(k))
    rest.saved({0, 1, 2}, lambda name: state(10 + int(name[-1])))
    rest.changed(2)
    rest.budget = 0
    rest.fit()
    assert files(tmp_path / "rest") == ["client-00002"]
    assert [int(rest.get(k)["n"]) for k in range(3)] == [10, 11, 2]


def test_a_state_that_came_back_and_changed_is_the_new_one(tmp_path: Path) -> None:
    rest = StateCache(0, tmp_path)
    rest.put(7, state(1))
    rest.saved({7}, lambda name: state(1))
    rest.get(7)
    rest.changed(7)
    rest.put(7, state(2))
    assert int(rest.peek(7)["n"]) == int(rest.get(7)["n"]) == 2


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(resting, "save_tensors", full)
    with pytest.raises(StorageError, match=r"client 3 could not be moved to .*No space left"):
        StateCache(0, tmp_path).put(3, state(1))


def test_without_a_folder_it_makes_its_own_and_removes_it() -> None:
    rest = StateCache(0)
    rest.put(0, state(1))
    folder = rest._folder
    assert folder is not None
    assert files(folder) == ["client-00000"]
    del rest  # as `close` does, for those who forget it
    assert not folder.exists()
