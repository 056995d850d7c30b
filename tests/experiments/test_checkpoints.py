"""When checkpoints are written, and what a killed run keeps. `test_stopping` has runs that are asked to stop."""

from __future__ import annotations

import errno
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.core.fake_engine import TESTS, FakeEngine, TinyMethod
from tests.helpers import Stop, StopAfter, assert_same, events, numbers, run_folder

from fedchoir import Experiment, load_model, run
from fedchoir.core import checkpoint
from fedchoir.core.result import read_events
from fedchoir.core.server import Server
from fedchoir.experiments import checkpoints
from fedchoir.experiments.checkpoints import Checkpoints, Every
from fedchoir.experiments.tracking.tensorboard import TensorBoard
from fedchoir.utils.errors import StorageError, UsageError

Small = Callable[..., Experiment]


@pytest.fixture
def saved_rounds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rounds whose checkpoint was begun."""
    found: list[int] = []
    save = checkpoint.save

    def recording(folder: Path, round_index: int, *rest: Any) -> Path:
        found.append(round_index)
        return save(folder, round_index, *rest)

    monkeypatch.setattr(checkpoint, "save", recording)
    return found


def play(folder: Path, every: Every, rounds: int, after: Callable[[int], None] = lambda index: None) -> Checkpoints:
    server = Server(TinyMethod(rounds=rounds), FakeEngine(), TESTS, folder=folder)  # type: ignore[arg-type]
    with Checkpoints(server, every, memory=1e9) as made:
        for index, _ in enumerate(made.rounds()):
            made.recorded()
            after(index)
    return made


# -- when --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "expected"), [(1, [0, 1, 2, 3, 4]), (2, [1, 3, 4]), (5, [4]), (9, [4]), ("never", [4]), ("auto", [4])]
)
def test_the_rounds_that_are_written(
    every: Every, expected: list[int], tmp_path: Path, saved_rounds: list[int]
) -> None:
    """These five rounds take milliseconds, so ``auto`` writes the last one only."""
    play(tmp_path, every, 5)
    assert saved_rounds == expected
    found = checkpoint.newest_intact(tmp_path)
    assert found is not None
    assert checkpoint.facts(found[0])["round"] == 4


class Clock:
    """Time that passes only where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.perf_counter = self.thread_time = lambda: self.now


@pytest.mark.parametrize("copying", [0.0, 0.05, 3.0])
@pytest.mark.parametrize("seconds", [0.3, 20.0, 400.0])
def test_auto_costs_at_most_two_percent(
    seconds: float, copying: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rounds of some seconds each and snapshots that take some seconds to copy, on a clock that stands still
    otherwise. The cost of the first one is estimated by its size."""
    clock, rounds, saved = Clock(), 200, []

    def save(folder: Path, index: int, states: Any, *rest: Any) -> Path:
        saved.append((index, list(states)))
        return folder / f"round-{index:05d}"

    monkeypatch.setattr(checkpoints, "time", clock)
    monkeypatch.setattr(checkpoint, "save", save)
    monkeypatch.setattr(FakeEngine, "evaluate", passing(clock, seconds, FakeEngine.evaluate))
    monkeypatch.setattr(FakeEngine, "states", passing(clock, copying, FakeEngine.states))
    shares: list[float] = []
    server = Server(TinyMethod(rounds=rounds), FakeEngine(), TESTS, folder=tmp_path)  # type: ignore[arg-type]
    made = Checkpoints(server, "auto", memory=1e9, size=copying * checkpoints.WRITE_RATE)
    for _ in made.rounds():
        made.recorded()
        shares.append((made.waited + made.work) / clock.now)
        made._take(made._writer.wait)
    assert all(share <= 0.02 for share in shares)
    limit = 0.02 * clock.now / (copying or 1e-9)
    first = (1 + 50 * copying) / seconds + 1  # rounds until one is affordable
    assert len(saved) >= min(rounds - first, 0.8 * limit - 1)  # the share is used


def passing(clock: Clock, seconds: float, function: Any) -> Any:
    def wrapped(*arguments: Any) -> Any:
        clock.now += seconds
        return function(*arguments)

    return wrapped


@pytest.mark.parametrize("value", [0, -1, "often", "", 2.5, True, None, "1.0"])
def test_other_values_are_refused(value: Any, small: Small) -> None:
    with pytest.raises(
        UsageError, match=r"checkpoint_every = .*it should be auto, never, or a number of rounds from 1"
    ):
        small("solo", checkpoint_every=value)


def test_it_may_change_between_stop_and_resume(small: Small) -> None:
    experiment = small("fedmd", rounds=3, checkpoint_every=1)
    with pytest.raises(Stop):
        run(experiment, observers=[StopAfter(1)])
    run(experiment.model_copy(update={"checkpoint_every": "never"}), resume=True)
    run(small("fedmd", "straight", rounds=3))
    assert_same(small("fedmd", "straight"), experiment)


def test_never_leaves_the_final_models(small: Small) -> None:
    one, two = small("fccl+", rounds=2, checkpoint_every="never"), small("fccl+", "two", rounds=2, checkpoint_every=1)
    run(one)
    run(two)
    assert_same(one, two)
    assert load_model(run_folder(one), "red") is not None


def test_never_keeps_nothing_of_a_run_that_is_stopped(small: Small) -> None:
    experiment = small("solo", rounds=3, checkpoint_every="never")
    with pytest.raises(Stop):
        run(experiment, observers=[StopAfter(1)])
    assert checkpoint.latest(run_folder(experiment) / "checkpoint") is None
    run(experiment, resume=True)  # from the start
    assert [event["round"] for event in events(experiment)] == [0, 1, 2]


# -- exact resume ------------------------------------------------------------------------------------------------------


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds go on while a file is written."""
    save = checkpoint.save_tensors

    def slowly(path: Path, tensors: Any) -> None:
        time.sleep(0.05)
        save(path, tensors)

    monkeypatch.setattr(checkpoint, "save_tensors", slowly)


@pytest.mark.usefixtures("slow_disk")
@pytest.mark.parametrize(
    ("devices", "budget"), [(None, "2GB"), (None, "0B"), pytest.param(("cpu", "cpu"), "0B", marks=pytest.mark.slow)]
)
def test_clients_that_train_while_a_checkpoint_is_written(devices: Any, budget: str, small: Small) -> None:
    """FedDC's clients keep a state. Some of them take part in each round, so files of the others are reused, and with
    no memory for states they are read from the last complete checkpoint."""
    common: dict[str, Any] = {"rounds": 5, "settings": {"fraction": 0.6}, "models": ("mlp",)}
    straight = small("feddc", "straight", **common, checkpoint_every="never")
    stopped = small("feddc", "stopped", **common, checkpoint_every=1, state_budget=budget, devices=devices)
    run(straight)
    with pytest.raises(Stop):
        run(stopped, observers=[StopAfter(2)])
    run(stopped, resume=True)
    assert_same(straight, stopped)


def last_round(folder: Path) -> int:
    """Of the newest checkpoint, while another process may write."""
    try:
        saved = checkpoint.newest_intact(folder / "checkpoint")
        return int(checkpoint.facts(saved[0])["round"]) if saved else -1
    except (UsageError, OSError):
        return -1


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert done()


def in_child(work: Callable[[], Any]) -> int:
    """The process id of a copy of this process that does some work."""
    if (child := os.fork()) == 0:
        try:
            work()
        finally:
            os._exit(1)
    return child


@pytest.mark.usefixtures("slow_disk")
def test_kill_minus_nine_at_any_time(small: Small) -> None:
    """Also while the thread writes: the disk is slow. Neither events nor steps nor curves appear twice."""
    common: dict[str, Any] = {"rounds": 6, "settings": {"fraction": 0.6}, "models": ("mlp",)}
    straight = small("feddc", "straight", **common, checkpoint_every="never")
    killed = small("feddc", "killed", **common, checkpoint_every=1)
    run(straight, observers=[TensorBoard()])
    rng, found = random.Random(0), [-1]
    folder = run_folder(killed)
    for attempt in range(7):
        child = in_child(lambda: run(killed, resume=True, observers=[TensorBoard()]))
        if attempt % 2:  # as soon as there is a new checkpoint: the thread writes the next one
            wait_until(lambda: last_round(folder) > found[-1])
        time.sleep(rng.uniform(0, 0.2))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found.append(last_round(folder))
        assert len(read_events(folder / "events.jsonl")) > found[-1]  # an event is on disk before its checkpoint
    assert found == sorted(found)
    assert len(set(found)) > 2  # they died in different rounds
    time.sleep(1.1)  # TensorBoard orders its files by the second, then by the process
    run(killed, resume=True, observers=[TensorBoard()])
    assert_same(straight, killed)
    assert (folder / "steps.jsonl").read_text() == (run_folder(straight) / "steps.jsonl").read_text()
    assert curve(folder) == curve(run_folder(straight))


def curve(folder: Path) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder / "tensorboard"))
    accumulator.Reload()
    return [(point.step, point.value) for point in accumulator.Scalars("accuracy/inter_avg")]


# -- errors ------------------------------------------------------------------------------------------------------------


def test_an_event_that_is_not_on_disk_gets_no_checkpoint(tmp_path: Path) -> None:
    server = Server(TinyMethod(rounds=3), FakeEngine(), TESTS, folder=tmp_path)  # type: ignore[arg-type]
    made = Checkpoints(server, "auto", memory=1e9)
    with suppress(OSError), made:
        for _ in made.rounds():
            raise OSError("full")  # before the round was recorded
    assert server.next_round == 1
    assert checkpoint.latest(tmp_path) is None


def test_a_full_disk_stops_the_next_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = checkpoint.save_tensors

    def full(path: Path, tensors: Any) -> None:
        if path.parent.name != "round-00000":
            raise OSError(errno.ENOSPC, "No space left on device")
        save(path, tensors)

    monkeypatch.setattr(checkpoint, "save_tensors", full)
    with pytest.raises(StorageError, match=r"^the checkpoint of round 2 could not be written to .*No space left"):
        play(tmp_path, 1, 9, after=lambda index: time.sleep(0.05))
    found = checkpoint.newest_intact(tmp_path)
    assert found is not None
    assert checkpoint.facts(found[0])["round"] == 0


def test_a_damaged_newest_checkpoint_is_not_reused(small: Small) -> None:
    """Clients that do not take part have their files linked from the checkpoint that was loaded, not the newest."""
    common: dict[str, Any] = {"rounds": 5, "settings": {"fraction": 0.4}}
    straight, broken = small("feddc", "straight", **common), small("feddc", "broken", **common, checkpoint_every=1)
    run(straight)
    with pytest.raises(Stop):
        run(broken, observers=[StopAfter(3)])
    newest = checkpoint.latest(run_folder(broken) / "checkpoint")
    assert newest is not None
    (newest / "server.safetensors").write_bytes(b"damaged")
    result = run(broken, resume=True)
    assert any("resumed from round-00002 instead" in note for note in result.notes)
    assert_same(straight, broken)


def test_numbers_do_not_depend_on_it(small: Small) -> None:
    made = [small("fedavg", f"every-{every}", checkpoint_every=every) for every in ("auto", 1, 2)]
    for experiment in made:
        run(experiment)
    assert numbers(made[0]) == numbers(made[1]) == numbers(made[2])
