from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from fedchoir import Experiment
from fedchoir.experiments.scheduler import Outcome
from fedchoir.experiments.sweep import Job
from fedchoir.reporting.sweep_view import SweepView, summary


def job(name: str) -> Job:
    return Job(name, name, Experiment(method="solo", out=Path(name)))


def test_without_a_terminal_each_run_that_ends_is_one_line() -> None:
    out = io.StringIO()
    jobs = [job("a"), job("b"), job("c")]
    with SweepView(Console(file=out, width=100), jobs) as view:
        view(jobs[0], {"event": "began", "rounds": 2, "done": 0})
        view(jobs[0], {"event": "round", "intra": 50.0, "inter": None})
        view(jobs[0], {"event": "retried", "why": "its [process] was killed"})
        view(jobs[0], {"event": "began", "rounds": 2, "done": 1})
        view(jobs[0], {"event": "finished", "seconds": 3.2})
        view(jobs[1], {"event": "skipped", "seconds": 0.0})
        view(jobs[2], {"event": "failed", "why": "no [data]", "seconds": 1.0})
    assert out.getvalue().splitlines() == [
        "a starts again: its [process] was killed", "a finished in 3 s", "b was finished before", "c failed: no [data]"
    ]  # fmt: skip


def test_the_summary_counts_states_and_names_logs() -> None:
    outcomes = [
        Outcome(job("a"), "finished"),
        Outcome(job("b"), "skipped"),
        Outcome(job("c"), "failed", log=Path("c/log")),
    ]
    assert summary(outcomes, Path("runs")) == (
        "1 finished, 1 were finished before, 1 failed · runs/\nfailed: c (log: c/log)"
    )
