"""Runs of a sweep whose process is killed: they continue by themselves, to the same numbers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import assert_same

from fedchoir import methods, run
from fedchoir.experiments.backend import Status
from fedchoir.experiments.scheduler import Outcome, run_jobs
from fedchoir.experiments.sweep import Job, jobs_of, read_sweep

PLUGIN = """
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import torch

from fedchoir.methods.fedmd import FedMD


class Fragile(FedMD):
    name = "fragile"

    def local_update(self, client):
        plan = json.loads(Path(__file__).with_suffix(".json").read_text())
        calls = Path(__file__).with_name("calls")
        with calls.open("a") as file:
            file.write(".")
        if plan["module"] in sys.argv[0] and calls.stat().st_size in plan["calls"] and self.is_next(plan["times"]):
            self.die(plan["how"])
        return super().local_update(client)

    def is_next(self, times):
        for number in range(times):
            with suppress(FileExistsError):
                Path(__file__).with_name(f"death{number}").touch(exist_ok=False)
                return True
        return False

    def die(self, how):
        if how == "bug":
            raise ValueError("a bug")
        if how == "GPU full":
            raise torch.OutOfMemoryError("CUDA out of memory")
        if how == "exit":
            os._exit(7)
        if how == "while stopping":
            sweep = next(p for p in psutil.Process().parents() if "sweep" in p.cmdline())
            sweep.send_signal(signal.SIGTERM)
            time.sleep(2)
            how = "SIGKILL"
        os.kill(os.getpid(), signal.Signals[how])
"""

Fragile = Callable[..., Path]


@pytest.fixture
def fragile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fragile]:
    """The method ``fragile``, whose process ends in some calls of its local update, counted from 1 over all processes;
    at most so many ``times``, and only in processes of the ``module``. Gives the file with a byte for each call."""

    def use(how: str, *calls: int, times: int = 100, module: str = "") -> Path:
        plan = {"how": how, "calls": calls, "times": times, "module": module}
        (tmp_path / "fragile.json").write_text(json.dumps(plan))
        return tmp_path / "calls"

    (tmp_path / "fragile.py").write_text(PLUGIN)
    monkeypatch.setenv("FEDCHOIR_PLUGINS", str(tmp_path / "fragile.py"))
    methods.registry.cache_clear()
    yield use
    monkeypatch.undo()
    methods.registry.cache_clear()


def execute(path: Path, out: Path, **more: Any) -> tuple[list[Outcome], list[Status]]:
    """The outcomes, and all reports."""
    reports: list[Status] = []
    outcomes = run_jobs(jobs_of(read_sweep(path), out), watch=lambda job, status: reports.append(status), **more)
    return outcomes, reports


def retries(reports: list[Status]) -> list[str]:
    return [status["why"] for status in reports if status["event"] == "retried"]


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, "auto"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_run_continues_to_the_numbers_of_an_undisturbed_one(
    number: signal.Signals, jobs: Any, sweep_of: Callable[..., Path], tmp_path: Path, fragile: Fragile
) -> None:
    """Twice: while the second client trains in the third round, and right after the start of the next process."""
    fragile(number.name, 8, 9)
    path = sweep_of(method=["fragile"], rounds=4, checkpoint_every=[1])
    outcomes, reports = execute(path, tmp_path / "out", processes=jobs)
    assert [outcome.state for outcome in outcomes] == ["finished"]
    why = f"its process was killed by signal {number.value}; it continues from its last checkpoint"
    assert retries(reports) == [f"{why}, retry 1 of 2", f"{why}, retry 2 of 2"]
    began = [status["done"] for status in reports if status["event"] == "began"]
    assert began[0] == 0
    assert all(done in (1, 2) for done in began[1:])  # the checkpoint of the second round may not be written yet
    fragile("never")
    straight = outcomes[0].job.experiment.model_copy(update={"out": tmp_path / "straight"})
    run(straight)
    assert_same(outcomes[0].job.out, straight)


@pytest.mark.slow
def test_a_killed_engine_process_counts_as_well(
    sweep_of: Callable[..., Path], tmp_path: Path, fragile: Fragile
) -> None:
    fragile("SIGKILL", *range(4, 100), times=1, module="multiprocess")
    path = sweep_of(method=["fragile"], rounds=3, checkpoint_every=[1], devices=[["cpu", "cpu"]])
    outcomes, reports = execute(path, tmp_path / "out")
    assert [outcome.state for outcome in outcomes] == ["finished"]
    (why,) = retries(reports)
    assert why.startswith("the process on cpu was killed by signal 9")
    fragile("never")
    straight = outcomes[0].job.experiment.model_copy(update={"out": tmp_path / "straight"})
    run(straight)
    assert_same(outcomes[0].job.out, straight)


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_fails_with_one_line(
    sweep_of: Callable[..., Path], tmp_path: Path, fragile: Fragile
) -> None:
    """And the runs after it are executed."""
    calls = fragile("SIGSEGV", *range(1, 100))
    outcomes, reports = execute(sweep_of(method=["fragile", "solo"]), tmp_path / "out")
    assert [outcome.state for outcome in outcomes] == ["failed", "finished"]
    assert outcomes[0].why == "its process was killed by signal 11; this happened 3 times"
    assert outcomes[0].log is not None
    assert len(retries(reports)) == 2
    assert calls.stat().st_size == 3


@pytest.mark.slow
@pytest.mark.parametrize(("how", "why"), [("bug", "ValueError: a bug"), ("exit", "its process ended with exit code 7")])
def test_an_error_is_not_tried_again(
    how: str, why: str, sweep_of: Callable[..., Path], tmp_path: Path, fragile: Fragile
) -> None:
    calls = fragile(how, 1, 2)
    outcomes, reports = execute(sweep_of(method=["fragile"]), tmp_path / "out")
    assert [(outcome.state, outcome.why) for outcome in outcomes] == [("failed", why)]
    assert not retries(reports)
    assert calls.stat().st_size == 1


@pytest.mark.slow
def test_a_gpu_that_is_full_is_tried_again_if_another_run_shares_it(
    sweep_of: Callable[..., Path], tmp_path: Path, fragile: Fragile
) -> None:
    """Two runs at once. One that is alone fails: it would find no more memory the next time."""
    fragile("GPU full", 3, times=1)
    path = sweep_of(method=["fragile"], rounds=3, checkpoint_every=[1, 2])
    outcomes, reports = execute(path, tmp_path / "out", processes=2)
    assert [outcome.state for outcome in outcomes] == ["finished", "finished"]
    (why,) = retries(reports)
    assert why.startswith("the memory of cpu is full; fewer runs at once (--jobs)")
    assert why.endswith("it continues from its last checkpoint, retry 1 of 2")
    (tmp_path / "calls").unlink()
    (tmp_path / "death0").unlink()
    outcomes, reports = execute(sweep_of(method=["fragile"]), tmp_path / "alone")
    assert [outcome.state for outcome in outcomes] == ["failed"]
    assert not retries(reports)


@pytest.mark.slow
@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize("devices", [["cpu"], ["cpu", "cpu"]])
def test_no_run_starts_again_while_the_sweep_stops(
    devices: list[str], sweep_of: Callable[..., Path], tmp_path: Path, fragile: Fragile
) -> None:
    """The process of the run, or one of its engine's, is killed after the sweep was asked to stop."""
    module = "multiprocess" if len(devices) > 1 else ""
    fragile("while stopping", *range(4, 100), times=1, module=module)
    path, out = sweep_of(method=["fragile"], rounds=3, checkpoint_every=[1], devices=[devices]), tmp_path / "out"
    command = [sys.executable, "-m", "fedchoir", "sweep", str(path), "--out", str(out), "--jobs", "auto"]
    environment = {**os.environ, "COLUMNS": "200"}
    sweep = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert sweep.returncode == 130, sweep.stdout + sweep.stderr
    assert "starts again" not in sweep.stdout
    assert "0 failed, 1 stopped, 0 not started" in sweep.stdout
    assert (tmp_path / "death0").exists()
    fragile("never")
    outcomes, reports = execute(path, out)
    assert [outcome.state for outcome in outcomes] == ["finished"]
    assert next(status for status in reports if status["event"] == "began")["done"] == 1


class Dying:
    """A back end where every run is killed at once, which stops when the first one is."""

    def __init__(self, stops: bool) -> None:
        self.stopping, self.stops = False, stops
        self.started: list[str] = []
        self.running: list[Job] = []

    def has_room(self, job: Job) -> bool:
        return not self.stopping and not self.running

    def start(self, job: Job) -> None:
        self.started.append(job.name)
        self.running.append(job)

    def poll(self, seconds: float) -> Iterator[tuple[Job, Status]]:
        while self.running:
            job = self.running.pop()
            self.stopping = self.stops
            yield job, {"event": "killed", "why": "it was killed"}

    def stop(self) -> None:
        self.stopping = True

    def close(self) -> None:
        pass


def test_runs_of_two_sweeps_may_have_one_name(sweep_of: Callable[..., Path], tmp_path: Path) -> None:
    sweep = read_sweep(sweep_of(method=["solo"]))
    jobs = [job for folder in ("a", "b") for job in jobs_of(sweep, tmp_path / folder)]
    assert jobs[0].name == jobs[1].name
    outcomes = run_jobs(jobs, backend=Dying(stops=False))
    assert [outcome.why for outcome in outcomes] == ["it was killed; this happened 3 times"] * 2
    assert [outcome.job for outcome in outcomes] == jobs


@pytest.mark.parametrize("stops", [True, False])
def test_what_is_told_of_a_killed_run(stops: bool, sweep_of: Callable[..., Path], tmp_path: Path) -> None:
    backend = Dying(stops)
    outcomes, reports = execute(sweep_of(method=["solo", "fedmd"]), tmp_path / "out", backend=backend)
    if stops:
        assert [(outcome.state, outcome.why) for outcome in outcomes] == [("stopped", "it was killed"), ("waiting", "")]
        assert len(backend.started) == 1
        assert not retries(reports)
    else:
        assert {outcome.why for outcome in outcomes} == {"it was killed; this happened 3 times"}
        assert len(backend.started) == 6
