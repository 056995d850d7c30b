"""Runs that are asked to stop: no complete round is lost, and the rest continues to the same numbers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.core.fake_engine import TESTS, FakeEngine, TinyMethod
from tests.experiments.test_checkpoints import Clock, Small, passing
from tests.experiments.test_scheduler import InstantBackend
from tests.helpers import assert_same, events, run_folder

from fedchoir import run
from fedchoir.core import checkpoint
from fedchoir.core.checkpoint_writer import CheckpointWriter
from fedchoir.core.server import Server
from fedchoir.experiments import checkpoints
from fedchoir.experiments.backend import Status
from fedchoir.experiments.checkpoints import Checkpoints, Every
from fedchoir.experiments.run import Observer
from fedchoir.experiments.scheduler import run_jobs
from fedchoir.experiments.sweep import Job, jobs_of, read_sweep
from fedchoir.utils.errors import Interrupted, Terminated, UsageError
from fedchoir.utils.stop_signals import GRACE, grace_seconds

pytestmark = pytest.mark.usefixtures("default_signals")


class SignalIn(Observer):
    """Sends this process signals while clients train; the round then takes some seconds more."""

    def __init__(self, index: int, *signals: signal.Signals, seconds: float = 0.0) -> None:
        self.index, self.signals, self.seconds = index, list(signals), seconds
        self.finished = -1

    def round(self, event: dict[str, Any]) -> None:
        self.finished = event["round"]

    def client(self, name: str, phase: str) -> None:
        if self.finished == self.index - 1 and self.signals:
            os.kill(os.getpid(), self.signals.pop(0))
            time.sleep(self.seconds)


def saved_rounds(folder: Path) -> int:
    found = checkpoint.newest_intact(folder / "checkpoint")
    return checkpoint.facts(found[0])["round"] + 1 if found else 0


@pytest.mark.parametrize(
    ("kind", "every"), [(signal.SIGINT, "auto"), (signal.SIGTERM, "auto"), (signal.SIGTERM, 1), (signal.SIGUSR1, 2)]
)
def test_a_signal_ends_the_run_after_its_round(kind: signal.Signals, every: Every, small: Small, capfd: Any) -> None:
    stopped, straight = small("fedmd", "stopped", rounds=4, checkpoint_every=every), small("fedmd", rounds=4)
    before = signal.getsignal(kind)
    with pytest.raises(Interrupted if kind == signal.SIGINT else Terminated) as caught:
        run(stopped, observers=[SignalIn(2, kind)])
    assert signal.getsignal(kind) == before
    assert "stopping after round 3; Ctrl-C again stops at once" in capfd.readouterr().err
    folder = run_folder(stopped)
    assert caught.value.saved == f"3 of 4 rounds are saved in {folder / 'checkpoint'}"
    assert saved_rounds(folder) == 3
    run(stopped, resume=True)
    run(straight)
    assert_same(straight, stopped)


@pytest.mark.parametrize(
    ("every", "signals", "kept"),
    [
        (1, [signal.SIGINT, signal.SIGTERM], 2),
        ("auto", [signal.SIGINT, signal.SIGINT], 0),  # so quick that nothing was written
        ("never", [signal.SIGINT], 0),
    ],
)
def test_a_run_that_is_stopped_at_once(every: Every, signals: list[signal.Signals], kept: int, small: Small) -> None:
    experiment = small("fedmd", rounds=4, checkpoint_every=every)
    with pytest.raises(Interrupted) as caught:
        run(experiment, observers=[SignalIn(2, *signals)])
    assert [event["round"] for event in events(experiment)] == [0, 1]
    assert saved_rounds(run_folder(experiment)) == kept
    assert caught.value.saved.startswith(f"{kept} of 4 rounds" if kept else "nothing was saved")


def test_rounds_longer_than_the_grace_period(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """The round does not end in time. All rounds before are in a checkpoint, so nothing else is lost."""
    monkeypatch.setenv(GRACE, "0.2")
    experiment = small("fedmd", rounds=4, checkpoint_every=1)
    start = time.monotonic()
    with pytest.raises(Terminated):
        run(experiment, observers=[SignalIn(2, signal.SIGTERM, seconds=60)])
    assert time.monotonic() - start < 50
    assert saved_rounds(run_folder(experiment)) == 2
    run(experiment, resume=True)
    run(small("fedmd", "straight", rounds=4))
    assert_same(small("fedmd", "straight"), experiment)


def test_a_copy_is_kept_where_it_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of 20 s; a checkpoint takes the thread 2 s, so at most every fifth round is written; a copy takes 10 ms. A
    signal comes in a round that needs longer than the grace period: a copy of the round before is written."""
    clock, written = Clock(), []
    monkeypatch.setattr(checkpoints, "time", clock)
    monkeypatch.setattr(FakeEngine, "evaluate", passing(clock, 20.0, FakeEngine.evaluate))
    monkeypatch.setattr(FakeEngine, "states", passing(clock, 0.01, FakeEngine.states))
    monkeypatch.setattr(CheckpointWriter, "work", property(lambda self: 2.0, lambda self, _: None), raising=False)
    monkeypatch.setenv(GRACE, "1")
    server = Server(TinyMethod(rounds=100), FakeEngine(), TESTS, folder=tmp_path / "checkpoint")  # type: ignore[arg-type]

    def interrupted(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the run went on")

    def play() -> None:
        with Checkpoints(server, "auto", memory=1e9) as made:
            for _ in made.rounds():
                made.recorded()
                made._take(made._writer.wait)
                written.append(made._saved)
                if server.next_round == 33:
                    monkeypatch.setattr(FakeEngine, "execute", interrupted)

    with pytest.raises(Terminated) as caught:
        play()
    assert 3 < len(set(written)) < 8
    assert written[-1] < 33  # there was no checkpoint of the last round
    assert saved_rounds(tmp_path) == 33
    assert caught.value.saved.startswith("33 of 100 rounds")


class EndsByItself(InstantBackend):
    """One that has stopped, as at the end of a stretch of GPU time; then this process gets signals."""

    def __init__(self, signals: int) -> None:
        super().__init__()
        self.signals, self.polls = signals, 0

    def poll(self, seconds: float) -> Iterator[tuple[Job, Status]]:
        self.stop()
        self.polls += 1
        if self.polls <= self.signals:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            yield self.started[0], {"event": "stopped", "why": "saved"}


@pytest.mark.parametrize("signals", [1, 2])
def test_only_the_second_signal_kills_though_the_back_end_has_stopped_before(
    signals: int, sweep_of: Callable[..., Path], tmp_path: Path
) -> None:
    backend = EndsByItself(signals)
    killed, outcomes = False, []
    try:
        outcomes = run_jobs(jobs_of(read_sweep(sweep_of(method=["solo"])), tmp_path / "out"), backend=backend)
    except Terminated:
        killed = True
    assert killed == (signals == 2)
    assert [outcome.why for outcome in outcomes] == ["saved"] * (2 - signals)
    assert (backend.polls, backend.closed) == (2, True)


def test_a_grace_period_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("soon", "-1", "inf", "nan", ""):
        monkeypatch.setenv(GRACE, text)
        with pytest.raises(UsageError, match=r"FEDCHOIR_GRACE = .* it should be a number of seconds"):
            grace_seconds()
