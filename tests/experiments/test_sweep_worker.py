"""A worker process of a sweep: the end of a run is reported, whatever state the run has left its GPU in."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedchoir import methods
from fedchoir.experiments import sweep_worker
from fedchoir.experiments.scheduler import run_jobs
from fedchoir.experiments.sweep import jobs_of, read_sweep
from fedchoir.experiments.sweep_worker import run_job
from fedchoir.utils.errors import Interrupted, UsageError

STICKY = """
import torch
from fedchoir.methods.solo import Solo
class Sticky(Solo):
    name = "sticky"
    def local_update(self, client):
        def fails():
            raise RuntimeError("CUDA error: device-side assert triggered")
        torch.cuda.is_available, torch.cuda.empty_cache = lambda: True, fails
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
"""


def test_the_cause_is_told_though_the_gpu_cannot_be_used_any_more(
    sweep_of: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After such an error every call of CUDA fails in this process. The next run starts in another one."""
    (tmp_path / "sticky.py").write_text(STICKY)
    monkeypatch.setenv("FEDCHOIR_PLUGINS", str(tmp_path / "sticky.py"))
    methods.registry.cache_clear()
    try:
        jobs = jobs_of(read_sweep(sweep_of(method=["sticky", "solo"], rounds=1)), tmp_path / "out")
        failed, finished = run_jobs(jobs)
    finally:
        monkeypatch.undo()
        methods.registry.cache_clear()
    assert (failed.state, finished.state) == ("failed", "finished")
    assert failed.why == "RuntimeError: CUDA error: an illegal memory access was encountered"


class Tensors:
    """What a run holds."""


@pytest.mark.parametrize("error", [UsageError("wrong"), Interrupted(), ValueError("a bug")])
def test_what_a_run_held_is_free_when_its_end_is_reported(
    error: BaseException, sweep_of: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[weakref.ref[Tensors]] = []
    ends: list[str] = []

    def run(*arguments: Any, **options: Any) -> None:
        own = Tensors()
        held.append(weakref.ref(own))
        raise type(error)(*error.args)

    def send(event: str, **facts: Any) -> None:
        sweep_worker.free_memory()
        assert held[0]() is None
        ends.append(event)

    monkeypatch.setattr(sweep_worker, "run", run)
    (job,) = jobs_of(read_sweep(sweep_of(method=["solo"])), tmp_path / "out")
    run_job(job, send)
    assert ends == ["stopped" if isinstance(error, Interrupted) else "failed"]
