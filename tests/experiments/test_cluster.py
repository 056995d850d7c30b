"""Sweeps on a cluster: preempted and killed jobs continue to the numbers of a sweep that nobody disturbed."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from tests.experiments import fake_slurm
from tests.helpers import assert_same

from fedchoir import run
from fedchoir.core import checkpoint
from fedchoir.experiments import cluster
from fedchoir.experiments.backend import Status
from fedchoir.experiments.cluster import Cluster, minutes
from fedchoir.experiments.scheduler import Outcome, run_jobs
from fedchoir.experiments.sweep import Job, jobs_of, read_sweep
from fedchoir.experiments.sweep_state import sweep_state
from fedchoir.utils.errors import UsageError


def until(happened: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


def rounds_of(job: Job) -> int:
    path = job.out / "events.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def process_of(job: Job) -> psutil.Process | None:
    """The process that executes a run: the one with its log as standard output."""
    log = str((job.out.parent / "logs" / f"{job.out.name}.log").resolve())
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "submitit.core._submit" in command and os.path.realpath(f"/proc/{process.pid}/fd/1") == log:
            return process
    return None


def disturb(job: Job, number: signal.Signals, after: int = 3) -> None:
    """Send a signal to the process of a run after so many rounds; wait until it is gone."""
    until(lambda: rounds_of(job) >= after)
    process = process_of(job)
    assert process is not None
    process.send_signal(number)
    process.wait(60)


class Sweep(threading.Thread):
    """A sweep in the background."""

    def __init__(self, jobs: list[Job], backend: Cluster, processes: int = 1) -> None:
        super().__init__(daemon=True)
        self._arguments = jobs, processes, self.watch, backend
        self.outcomes: list[Outcome] = []
        self.news: list[tuple[str, Status]] = []
        self.start()

    def watch(self, job: Job, status: Status) -> None:
        self.news.append((job.name, status))

    def run(self) -> None:
        self.outcomes = run_jobs(*self._arguments)

    def states(self) -> list[str]:
        self.join(120)
        return [outcome.state for outcome in self.outcomes]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.slow
def test_preempted_and_killed_jobs_continue_to_the_same_numbers(sweep_of: Callable[..., Path], tmp_path: Path) -> None:
    """USR2 is Slurm's warning before preemption: submitit requeues the job. SIGKILL stands for a node that dies."""
    jobs = jobs_of(read_sweep(sweep_of(method=["fedmd", "fccl+"], rounds=15, checkpoint_every=[1])), tmp_path / "out")
    assert [run.state for run in sweep_state(jobs)] == ["not started"] * 2
    sweep = Sweep(jobs, Cluster(tmp_path / "out", "local", {}, at_once=2))
    with ThreadPoolExecutor() as threads:
        list(threads.map(disturb, jobs, (signal.SIGUSR2, signal.SIGKILL)))
    assert {run.state for run in sweep_state(jobs)} <= {"running", "stopped"}
    assert sweep.states() == ["finished"] * 2
    log = (tmp_path / "out" / "logs" / f"{jobs[0].name}.log").read_text()
    assert "this job is preempted" in log
    assert log.count("Requeued job") == 1
    records = [json.loads((tmp_path / "out" / ".slurm" / f"{job.name}.json").read_text()) for job in jobs]
    assert [record["submissions"] for record in records] == [1, 2]  # a requeue is no second submission
    began = [(name, status["done"]) for name, status in sweep.news if status["event"] == "began"]
    assert began[-1][0] == jobs[1].name
    assert began[-1][1] >= 1  # not from the start
    for job in jobs:
        same_as_undisturbed(job, tmp_path)
    assert {(run.state, run.done, run.planned) for run in sweep_state(jobs)} == {("finished", 15, 15)}


def same_as_undisturbed(job: Job, folder: Path) -> None:
    straight = job.experiment.model_copy(update={"out": folder / f"straight-{job.name}"})
    run(straight)
    assert_same(job.out, straight)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Slurm's commands, played by scripts."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    fake_slurm.write_commands(folder)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(cluster, "INTERVAL", 0.2)
    return folder


@pytest.mark.slow
def test_an_array_is_submitted_preempted_and_found_again(
    sweep_of: Callable[..., Path], tmp_path: Path, slurm: Path
) -> None:
    jobs = jobs_of(read_sweep(sweep_of(method=["solo", "fedmd"], rounds=12)), tmp_path / "out")
    settings = {"time": "2:00:00", "mem": "32GB", "gpus": "1", "account": "lab"}
    first = Cluster(tmp_path / "out", "gpu", settings, at_once=5)
    for job in jobs:
        assert first.has_room(job)
        first.start(job)
    assert list(first.poll(0.0)) == []  # submits, and then the command dies
    script = (slurm / "100.script").read_text()
    for line in ("partition=gpu", "time=120", "mem=32GB", "gpus-per-node=1", "account=lab", "requeue", "array=0-1%2"):
        assert f"#SBATCH --{line}\n" in script
    disturb(jobs[1], signal.SIGUSR2)  # long before a checkpoint is due
    log = (tmp_path / "out" / "logs" / f"{jobs[1].name}.log").read_text()
    assert log.index("stopping after round ") < log.index("this job is preempted")
    saved = checkpoint.latest(jobs[1].out / "checkpoint")
    assert saved is not None
    assert checkpoint.facts(saved)["round"] >= 3  # the round at hand, after three complete ones
    sweep = Sweep(jobs, Cluster(tmp_path / "out", "gpu", settings))
    assert set(sweep.states()) <= {"finished", "skipped"}
    assert len(list(slurm.glob("*.script"))) == 1  # nothing was submitted twice
    same_as_undisturbed(jobs[1], tmp_path)


def test_jobs_that_slurm_ended(sweep_of: Callable[..., Path], tmp_path: Path, slurm: Path) -> None:
    """Cancelled jobs and those without memory are not submitted again; the status tells what waits."""
    jobs = jobs_of(read_sweep(sweep_of(method=["solo", "fedmd"])), tmp_path / "out")
    (tmp_path / "out" / ".slurm").mkdir(parents=True)
    for job, state in zip(jobs, ("PENDING", "OUT_OF_MEMORY"), strict=True):
        number = f"7_{jobs.index(job)}"
        (slurm / f"{number}.state").write_text(state)
        record = {"job": number, "local": False, "submissions": 1}
        (tmp_path / "out" / ".slurm" / f"{job.name}.json").write_text(json.dumps(record))
    assert [(run.state, run.note) for run in sweep_state(jobs)] == [
        ("queued", "job 7_0"),
        ("not started", "job 7_1 OUT_OF_MEMORY"),
    ]
    backend = Cluster(tmp_path / "out", "gpu", {})
    backend._grace = 0.0
    backend.start(jobs[0])
    (slurm / "7_0.state").write_text("CANCELLED by 1000")
    news: list[tuple[Job, Status]] = []
    while not news:
        news += backend.poll(2.0)
    assert news == [(jobs[0], {"event": "failed", "why": "its job 7_0 ended as CANCELLED: somebody cancelled it"})]
    assert list(slurm.glob("*.script")) == []


def test_wrong_settings_are_one_line(
    sweep_of: Callable[..., Path], tmp_path: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=r"color is not known; it should be one of account, .*gpus, "):
        Cluster(tmp_path, "gpu", {"color": "red"})
    for wrong in ("soon", "4:00", "1-", "1-5", "-3"):
        with pytest.raises(UsageError, match=r"minutes .90., 4:00:00 or 2-00:00:00"):
            minutes(wrong)
    absent = Cluster(tmp_path / "out", "absent", {})
    absent.start(jobs_of(read_sweep(sweep_of(method=["solo"])), tmp_path / "out")[0])
    with pytest.raises(UsageError, match=r"Slurm did not accept the sweep: .*invalid partition specified: absent"):
        list(absent.poll(0.0))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"there is no srun on this machine; .* --slurm local"):
        Cluster(tmp_path, "gpu", {})
