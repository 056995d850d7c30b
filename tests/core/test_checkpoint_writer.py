"""The thread that writes checkpoints: what it writes is the state at the snapshot, and nothing is lost if it fails."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedchoir.core import checkpoint
from fedchoir.core.checkpoint import Snapshot
from fedchoir.core.checkpoint_writer import CheckpointWriter, Copies, host_copy
from fedchoir.utils.errors import StorageError

State = dict[str, Tensor]
SIZE = 4000  # bytes of one client's state


def client(value: float) -> State:
    return {"w": torch.full((1000,), value)}


def snapshot(round_index: int, states: dict[str, State | None], base: Path | None = None) -> Snapshot:
    return Snapshot(round_index, [*states.items(), ("server", {})], {"round": round_index}, base)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[CheckpointWriter]:
    made = CheckpointWriter(tmp_path, 1e9)
    yield made
    made.close()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The thread writes no file before this is set."""
    opened, save = threading.Event(), checkpoint.save_tensors

    def waiting(path: Path, tensors: State) -> None:
        assert opened.wait(60)
        save(path, tensors)

    monkeypatch.setattr(checkpoint, "save_tensors", waiting)
    yield opened
    opened.set()


def test_what_changes_after_the_snapshot_is_not_in_the_file(
    writer: CheckpointWriter, gate: threading.Event, tmp_path: Path
) -> None:
    live = client(1.0)
    writer.start(snapshot(0, {"client-0": live}))
    live["w"].fill_(2.0)  # the next round
    assert writer.busy
    assert writer.finished() is None
    gate.set()
    folder = writer.wait()
    assert folder == checkpoint.latest(tmp_path)
    assert checkpoint.load(folder, "client-0")["w"].unique().tolist() == [1.0]  # type: ignore[arg-type]
    assert writer.wait() is None  # a checkpoint is given once


def test_no_checkpoint_is_complete_before_its_last_file(
    writer: CheckpointWriter, gate: threading.Event, tmp_path: Path
) -> None:
    checkpoint.latest(tmp_path)
    writer.start(snapshot(0, {"client-0": client(1.0)}))
    assert checkpoint.newest_intact(tmp_path) is None
    gate.set()
    writer.wait()
    assert checkpoint.newest_intact(tmp_path) is not None


def test_unchanged_clients_keep_their_file(writer: CheckpointWriter) -> None:
    writer.start(snapshot(0, {"client-0": client(1.0), "client-1": client(1.0)}))
    first = writer.wait()
    assert first is not None
    writer.start(snapshot(3, {"client-0": None, "client-1": client(2.0)}, first))
    second = writer.wait()
    assert second is not None
    same = [(first / f"client-{k}.safetensors").samefile(second / f"client-{k}.safetensors") for k in range(2)]
    assert same == [True, False]
    assert checkpoint.newest_intact(second.parent) == (second, "")


def test_beyond_its_memory_the_snapshot_waits(gate: threading.Event, tmp_path: Path) -> None:
    """Of six states, one is being written, two wait, and the fourth one waits for room."""
    given: list[int] = []

    def states() -> Iterator[tuple[str, State]]:
        for k in range(6):
            given.append(k)
            yield f"client-{k}", client(float(k))
        yield "server", {}

    writer = CheckpointWriter(tmp_path, 2 * SIZE)
    start = threading.Thread(target=writer.start, args=[Snapshot(0, states(), {"round": 0})])
    start.start()
    until(lambda: len(given) == 4)
    time.sleep(0.1)
    assert len(given) == 4
    assert start.is_alive()
    gate.set()
    start.join(60)
    folder = writer.wait()
    assert folder is not None
    assert [checkpoint.load(folder, f"client-{k}")["w"][0].item() for k in range(6)] == list(range(6))
    writer.close()


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert done()


def test_a_state_larger_than_the_memory_goes_alone() -> None:
    copies = Copies(0)
    copies.put("client-0", client(1.0))
    copies.close()
    assert [name for name, _ in copies] == ["client-0"]


@pytest.mark.parametrize("fail_at", ["client-3", "server"])
def test_a_full_disk_is_raised_and_the_former_checkpoint_stays(
    fail_at: str, writer: CheckpointWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.start(snapshot(0, {f"client-{k}": client(1.0) for k in range(5)}))
    first, save = writer.wait(), checkpoint.save_tensors

    def full(path: Path, tensors: State) -> None:
        if path.stem == fail_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(path, tensors)

    monkeypatch.setattr(checkpoint, "save_tensors", full)
    writer.start(snapshot(1, {f"client-{k}": client(2.0) for k in range(5)}, first))
    with pytest.raises(StorageError, match=r"^the checkpoint of round 2 could not be written.*No space left"):
        writer.wait()
    assert checkpoint.newest_intact(tmp_path) == (first, "")
    assert [path.name for path in tmp_path.glob("round-*")] == ["round-00000"]
    monkeypatch.undo()
    writer.start(snapshot(1, {f"client-{k}": client(2.0) for k in range(5)}, first))  # and the next attempt works
    assert writer.wait() == tmp_path / "round-00001"
    assert checkpoint.newest_intact(tmp_path) == (tmp_path / "round-00001", "")


def test_a_snapshot_that_fails_leaves_nothing_and_blocks_nothing(writer: CheckpointWriter, tmp_path: Path) -> None:
    def broken() -> Iterator[tuple[str, State]]:
        yield "client-0", client(1.0)
        raise ArithmeticError("a process died")

    with pytest.raises(ArithmeticError):
        writer.start(Snapshot(0, broken(), {"round": 0}))
    writer.start(snapshot(0, {"client-0": client(1.0)}))
    assert writer.wait() == tmp_path / "round-00000"


def test_records_that_are_lost_are_an_error(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path / "checkpoint", 1e9, [tmp_path / "events.jsonl"])
    writer.start(snapshot(0, {"client-0": client(1.0)}))
    with pytest.raises(StorageError, match=r"events\.jsonl"):
        writer.wait()
    assert checkpoint.newest_intact(tmp_path / "checkpoint") is None
    writer.close()


def test_copies_keep_layout_and_share_nothing() -> None:
    whole = torch.rand(2, 8, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    copies = host_copy({"a": whole, "b": whole[:1]})
    assert copies["a"].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(copies["b"], whole[:1])
    assert not any(copy.requires_grad for copy in copies.values())
    assert copies["a"].untyped_storage().data_ptr() != copies["b"].untyped_storage().data_ptr()
