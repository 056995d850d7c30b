"""The scheduler: several runs at once, each once, and none lost when a process is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tests.helpers import assert_same, numbers

from fedchoir import run
from fedchoir.core import checkpoint
from fedchoir.experiments.backend import Status
from fedchoir.experiments.scheduler import Outcome, is_finished, is_locked, lock_of, run_jobs, write_manifest
from fedchoir.experiments.sweep import Job, jobs_of, read_sweep
from fedchoir.utils.errors import UsageError
from fedchoir.utils.stop_signals import GRACE


def execute(path: Path, out: Path, **more: Any) -> tuple[list[Outcome], list[Status]]:
    """The outcomes, and all news of the runs."""
    news: list[Status] = []
    outcomes = run_jobs(jobs_of(read_sweep(path), out), watch=lambda job, status: news.append(status), **more)
    return outcomes, news


def test_two_runs_with_one_folder_are_refused_before_anything_starts(
    sweep_of: Callable[..., Path], tmp_path: Path
) -> None:
    """Ends of runs are counted by folder, so the sweep would never be over."""
    jobs = jobs_of(read_sweep(sweep_of(method=["solo"])), tmp_path / "out")
    with pytest.raises(UsageError, match="is the folder of two runs of this sweep"):
        run_jobs([*jobs, *jobs])
    assert not jobs[0].out.exists()


def test_two_at_once_then_nothing_is_left_to_do(sweep_of: Callable[..., Path], tmp_path: Path) -> None:
    path = sweep_of(method=["solo", "fedmd"])
    outcomes, news = execute(path, tmp_path / "out", processes=2)
    assert [o.state for o in outcomes] == ["finished", "finished"]
    assert sum(status["event"] == "round" for status in news) == 4
    written = {
        job.out: (job.out / "result.json").stat().st_mtime_ns for job in jobs_of(read_sweep(path), tmp_path / "out")
    }
    again, _ = execute(path, tmp_path / "out", processes=2)
    assert [o.state for o in again] == ["skipped", "skipped"]
    assert {out: (out / "result.json").stat().st_mtime_ns for out in written} == written
    path.write_text(path.read_text().replace("local_epochs = 1", "local_epochs = 2"))
    changed, _ = execute(path, tmp_path / "out")
    assert [o.state for o in changed] == ["failed", "failed"]
    assert "holds another run: settings was" in changed[0].why


CRASH = """
import os
from fedchoir.methods.solo import Solo
class Crash(Solo):
    name = "crash"
    def local_update(self, client):
        os.kill(os.getpid(), 9)
class Bug(Solo):
    name = "bug"
    def local_update(self, client):
        print("about to fail")
        raise ValueError("a bug")
"""


def test_failed_runs_are_told_and_do_not_stop_the_others(
    sweep_of: Callable[..., Path], tmp_path: Path, shapes: Path, plugins: Callable[[str], None]
) -> None:
    """Data that cannot be read, a bug, and a process that dies."""
    plugins(CRASH)
    (tmp_path / "broken").mkdir()
    for name in "ab":
        np.savez(tmp_path / "broken" / f"{name}.npz", train_x=np.zeros((8, 16, 16, 3), dtype=np.uint8))
    scenarios = [str(tmp_path / "broken"), str(shapes)]
    outcomes, _ = execute(sweep_of(scenario=scenarios, method=["crash", "bug", "solo"], rounds=1), tmp_path / "out")
    assert [o.state for o in outcomes] == ["failed"] * 5 + ["finished"]
    assert "a.npz: no array 'train_y'" in outcomes[0].why
    assert outcomes[3].why == "its process was killed by signal 9; this happened 3 times"
    assert outcomes[4].why == "ValueError: a bug"
    assert outcomes[4].log is not None
    assert "about to fail" in outcomes[4].log.read_text()


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Methods of a user's own for this test and the processes it starts."""
    from fedchoir import methods

    def use(source: str) -> None:
        path = tmp_path / "plugin.py"
        path.write_text(source)
        monkeypatch.setenv("FEDCHOIR_PLUGINS", str(path))
        methods.registry.cache_clear()

    yield use
    monkeypatch.undo()
    methods.registry.cache_clear()


def command(path: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "fedchoir", "sweep", str(path), "--out", str(out)]


def test_a_sweep_that_is_killed_goes_on_to_the_same_numbers(sweep_of: Callable[..., Path], tmp_path: Path) -> None:
    """SIGKILL for the sweep: its worker leaves too, gives its lock back, and the run goes on from its checkpoint."""
    path, out = sweep_of(method=["fedmd"], rounds=12, checkpoint_every=[1]), tmp_path / "killed"
    (job,) = jobs_of(read_sweep(path), out)
    sweep = subprocess.Popen(command(path, out), stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    events = job.out / "events.jsonl"
    _until(lambda: events.exists() and events.read_text().count("\n") >= 3)
    workers = psutil.Process(sweep.pid).children(recursive=True)
    os.kill(sweep.pid, signal.SIGKILL)
    sweep.wait()
    _until(lambda: not any(worker.is_running() and worker.status() != "zombie" for worker in workers))
    assert workers
    assert not is_finished(job)
    _until(lambda: not is_locked(job))  # the thread that writes a checkpoint may end a moment later
    before = len(numbers(job.out))
    assert before < 12
    outcomes, news = execute(path, out)
    assert [o.state for o in outcomes] == ["finished"]
    began = next(status for status in news if status["event"] == "began")
    assert began["done"] in (before - 2, before - 1, before)  # not from the start; one checkpoint may be in flight
    straight = job.experiment.model_copy(update={"out": tmp_path / "straight"})
    run(straight)
    assert numbers(job.out) == numbers(tmp_path / "straight")


def start_sweep(path: Path, out: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command(path, out), env=environment, start_new_session=True, **pipes)


def rounds_of(job: Job) -> int:
    path = job.out / "events.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


@pytest.mark.slow
@pytest.mark.usefixtures("default_signals")
def test_a_sweep_that_is_asked_to_stop_loses_nothing(
    sweep_of: Callable[..., Path], tmp_path: Path, plugins: Callable[[str], None]
) -> None:
    """Stopped twice, each time in the second round that it computes: much sooner than a checkpoint is due. A signal to
    the whole group, as from systemd or Slurm, reaches the workers, too."""
    plugins(SLOW)
    path, out = sweep_of(method=["slow", "solo"], rounds=6), tmp_path / "stopped"
    job, _ = jobs_of(read_sweep(path), out)
    before = 0
    for kill in (os.kill, os.killpg):
        sweep = start_sweep(path, out)
        _until(lambda: rounds_of(job) > before)  # noqa: B023
        kill(sweep.pid, signal.SIGTERM)
        output, _ = sweep.communicate(timeout=60)
        assert sweep.returncode == 130, output
        before = rounds_of(job)
        assert f"{job.name} stopped: {before} of 6 rounds are saved in {job.out}" in output, output
        assert f"0 failed, 1 stopped, 1 not started; to continue: fedchoir sweep {path} --out {out}" in output
        saved = checkpoint.latest(job.out / "checkpoint")
        assert saved is not None
        assert checkpoint.facts(saved)["round"] + 1 == before < 6
    outcomes, news = execute(path, out)
    assert [o.state for o in outcomes] == ["finished", "finished"]
    assert next(status for status in news if status["event"] == "began")["done"] == before
    straight = job.experiment.model_copy(update={"out": tmp_path / "straight"})
    run(straight)
    assert_same(job.out, straight)


SLOW = """
import time
from fedchoir.methods.solo import Solo
class Slow(Solo):
    name = "slow"
    def local_update(self, client):
        time.sleep(0.5)
        return super().local_update(client)
class Stuck(Solo):
    name = "stuck"
    def local_update(self, client):
        print("stuck", flush=True)
        while True:
            try:
                time.sleep(60)
            except BaseException:
                pass
"""


@pytest.mark.slow
@pytest.mark.usefixtures("default_signals")
def test_a_run_that_does_not_stop_is_killed(
    sweep_of: Callable[..., Path], tmp_path: Path, plugins: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the grace period, or with a second signal."""
    plugins(SLOW)
    path, out = sweep_of(method=["stuck"]), tmp_path / "out"
    (job,) = jobs_of(read_sweep(path), out)
    log = out / "logs" / f"{job.out.name}.log"
    for grace, signals in (("1", 1), ("600", 2)):
        monkeypatch.setenv(GRACE, grace)
        sweep = start_sweep(path, out)
        _until(lambda: log.exists() and "stuck" in log.read_text())
        for _ in range(signals):
            sweep.send_signal(signal.SIGINT)
            time.sleep(1.0)
        output, _ = sweep.communicate(timeout=30)
        assert sweep.returncode == 130
        assert ("it did not stop in time" in output) == (signals == 1)
        _until(lambda: not is_locked(job))
        log.unlink()


def test_two_sweeps_on_one_folder_never_play_a_run_twice(sweep_of: Callable[..., Path], tmp_path: Path) -> None:
    path, out = sweep_of(method=["solo"], rounds=1), tmp_path / "out"
    (job,) = jobs_of(read_sweep(path), out)
    outcomes: list[Outcome] = []
    ours = threading.Thread(target=lambda: outcomes.extend(execute(path, out)[0]))
    with lock_of(job.out):  # as a sweep does that executes the run
        ours.start()
        time.sleep(1.5)  # ours looks several times
        assert ours.is_alive()
        assert not job.out.exists()
    ours.join(timeout=120)
    assert [o.state for o in outcomes] == ["finished"]
    assert is_finished(job)


def _until(happened: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


class InstantBackend:
    """A back end of another kind: every run ends at once; the first is taken by another sweep for a while."""

    stopping = False

    def __init__(self) -> None:
        self.started: list[Job] = []
        self.news: list[tuple[Job, Status]] = []
        self.closed = False

    def has_room(self, job: Job) -> bool:
        return not self.news

    def start(self, job: Job) -> None:
        self.started.append(job)
        state = "locked" if len(self.started) == 1 else "failed" if "fedmd" in job.name else "finished"
        self.news.append((job, {"event": state, "why": "no reason"}))

    def poll(self, seconds: float) -> Iterator[tuple[Job, Status]]:
        yield from self.news
        self.news.clear()

    def stop(self) -> None:
        self.stopping = True

    def close(self) -> None:
        self.closed = True


def test_another_back_end(sweep_of: Callable[..., Path], tmp_path: Path) -> None:
    backend = InstantBackend()
    outcomes, _ = execute(sweep_of(method=["solo", "fedmd", "fccl+"]), tmp_path / "out", backend=backend)
    assert [o.state for o in outcomes] == ["finished", "failed", "finished"]
    assert [job.experiment.method for job in backend.started] == ["solo", "fedmd", "fccl+", "solo"]
    assert outcomes[1].why == "no reason"
    assert backend.closed


def test_the_manifest_keeps_what_it_had(sweep_of: Callable[..., Path], tmp_path: Path) -> None:
    for method in ("solo", "fedmd"):
        write_manifest(tmp_path, None, "two", jobs_of(read_sweep(sweep_of(method=[method])), tmp_path))
    assert list(json.loads((tmp_path / "sweep.json").read_text())["runs"].values()) == ["solo", "fedmd"]
