"""Worker processes of a sweep: what they report of their memory, and when they end."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from fedchoir import Experiment, methods
from fedchoir.experiments import local_processes
from fedchoir.experiments.backend import ENDS, Status
from fedchoir.experiments.local_processes import LocalProcesses
from fedchoir.experiments.placement import HOST, Places
from fedchoir.experiments.scheduler import run_jobs
from fedchoir.experiments.sweep import Job, jobs_of, read_sweep
from fedchoir.utils.subprocess_channel import Channel, ChildProcess

MIB = 2**20
LARGE = """
import os
from fedchoir.methods.solo import Solo
class Large(Solo):
    name = "large"
    def local_update(self, client):
        block = b"x" * (300 * 2**20)
        return super().local_update(client)
class Small(Solo):
    name = "small"
"""


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The method ``large``, whose local update needs 300 MiB for a moment, and ``small``."""
    (tmp_path / "large.py").write_text(LARGE)
    monkeypatch.setenv("FEDCHOIR_PLUGINS", str(tmp_path / "large.py"))
    methods.registry.cache_clear()
    yield
    monkeypatch.undo()
    methods.registry.cache_clear()


@pytest.mark.slow
@pytest.mark.usefixtures("large")
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the system does not forget peaks")
def test_a_run_reports_its_own_memory_and_not_that_of_the_run_before(
    sweep_of: Callable[..., Path], tmp_path: Path
) -> None:
    """Three runs in one process."""
    memory: dict[str, list[int]] = {}

    def watch(job: Job, status: Status) -> None:
        if status["event"] == "round":
            memory.setdefault(job.experiment.method, []).append(status["memory"][HOST])

    jobs = jobs_of(read_sweep(sweep_of(method=["small", "large", "solo"])), tmp_path / "out")
    assert {outcome.state for outcome in run_jobs(jobs, watch=watch)} == {"finished"}
    assert all(len(rounds) == 2 for rounds in memory.values())
    small, large, after = (max(memory[method]) for method in ("small", "large", "solo"))
    assert large - small > 290 * MIB
    assert large - after > 200 * MIB


class Closable(Places):
    """Places that a test closes."""

    closed = False

    def admits(self, job: Job) -> bool:
        return not self.closed and super().admits(job)


@pytest.mark.slow
def test_an_idle_process_ends_when_the_next_run_does_not_fit(sweep_of: Callable[..., Path], tmp_path: Path) -> None:
    """It would hold memory that the run needs. Otherwise the next run starts in it."""
    jobs = jobs_of(read_sweep(sweep_of(method=["solo", "fedmd", "fccl"], rounds=1)), tmp_path / "out")
    others = set(psutil.Process().children())
    places = Closable(1)

    def execute(job: Job) -> psutil.Process:
        backend.start(job)
        (process,) = set(psutil.Process().children()) - others
        while "finished" not in [status["event"] for _, status in backend.poll(0.5)]:
            pass
        return process

    with closing(LocalProcesses(places)) as backend:
        first = execute(jobs[0])
        assert execute(jobs[1]) == first
        places.closed = True
        assert not backend.has_room(jobs[2])
        assert not first.is_running()
        places.closed = False
        assert backend.has_room(jobs[2])
        assert execute(jobs[2]) != first


FULL = {"event": "failed", "why": "the memory of cuda:0 is full", "broken": True, "gpu_full": True}
FINISHED = {"event": "finished"}


class Told:
    """A back end whose processes execute nothing: they report what the test tells."""

    def __init__(self, folder: Path, places: int) -> None:
        self.folder, self.backend = folder, LocalProcesses(Places(places))

    def work(self, channel: Channel) -> None:
        """What a process does."""
        while True:
            path = self.folder / json.loads(channel.receive()[0])["name"]
            while not path.exists():
                time.sleep(0.01)
            channel.send([path.read_bytes()])
            path.unlink()

    def tell(self, job: Job, status: Status) -> None:
        part = self.folder / "part"
        part.write_text(json.dumps(status))
        part.rename(self.folder / job.name)

    def ends(self, count: int = 1) -> dict[str, str]:
        """How the next runs end."""
        found: dict[str, str] = {}
        while len(found) < count:
            found |= {job.name: status["event"] for job, status in self.backend.poll(5) if status["event"] in ENDS}
        return found


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Told]]:
    made: list[Told] = []

    def make(places: int) -> Told:
        made.append(Told(tmp_path, places))
        return made[-1]

    spawn = lambda name, module, environment: ChildProcess.fork(name, made[-1].work)  # noqa: E731
    monkeypatch.setattr(local_processes.ChildProcess, "spawn", spawn)
    yield make
    for one in made:
        one.backend.close()


def named(name: str) -> Job:
    return Job(name, name, Experiment(method="solo", device="cpu", out=Path("nowhere") / name))


A, B, C = map(named, "abc")


def test_a_run_that_found_a_gpu_full_waits_until_another_one_has_ended(told: Callable[[int], Told]) -> None:
    """Also with a fixed number of runs at once: it would find the same neighbours and no more memory."""
    sweep = told(3)
    for job in (A, B, C):
        sweep.backend.start(job)
    sweep.tell(A, FULL)
    assert sweep.ends() == {"a": "killed"}
    assert not sweep.backend.has_room(A)
    sweep.tell(B, FINISHED)
    assert sweep.ends() == {"b": "finished"}
    assert sweep.backend.has_room(A)
    sweep.backend.start(A)
    sweep.tell(A, FULL)
    assert sweep.ends() == {"a": "killed"}
    assert not sweep.backend.has_room(A)
    sweep.tell(C, FINISHED)
    assert sweep.ends() == {"c": "finished"}
    assert sweep.backend.has_room(A)


def test_runs_that_fill_a_gpu_together_all_start_again(told: Callable[[int], Told]) -> None:
    """The last of them is alone when its end is read, but it was not when it failed."""
    sweep = told(2)
    for job in (A, B):
        sweep.backend.start(job)
    for job in (A, B):
        sweep.tell(job, FULL)
    assert sweep.ends(2) == {"a": "killed", "b": "killed"}
    assert sweep.backend.has_room(A)
    sweep.backend.start(A)
    assert not sweep.backend.has_room(B)
    sweep.tell(A, FULL)  # now it was alone
    assert sweep.ends() == {"a": "failed"}
    assert sweep.backend.has_room(B)


def test_a_run_does_not_start_in_an_idle_process_that_has_died(told: Callable[[int], Told]) -> None:
    """A system without memory may kill it. That is no death of the next run."""
    sweep, others = told(1), set(psutil.Process().children())
    sweep.backend.start(A)
    sweep.tell(A, FINISHED)
    sweep.ends()
    (process,) = set(psutil.Process().children()) - others
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # all its threads have ended, and with them its channel
    sweep.backend.start(B)
    sweep.tell(B, FINISHED)
    assert sweep.ends() == {"b": "finished"}
