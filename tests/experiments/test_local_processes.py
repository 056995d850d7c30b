"""Worker processes of a sweep: what they report of their memory, and when they end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from fedchoir import methods
from fedchoir.experiments.backend import Status
from fedchoir.experiments.local_processes import LocalProcesses
from fedchoir.experiments.placement import HOST, Places
from fedchoir.experiments.scheduler import run_jobs
from fedchoir.experiments.sweep import Job, jobs_of, read_sweep

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
