"""How far a sweep is, read from the folders of its runs and, where it was submitted to Slurm, from the queue."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from fedchoir.core.result import read_events
from fedchoir.experiments.cluster import job_state, read_end, read_record
from fedchoir.experiments.scheduler import is_finished, is_locked, lock_path
from fedchoir.experiments.sweep import Job
from fedchoir.utils.errors import UsageError

STATES = ("finished", "running", "queued", "stopped", "failed", "not started")
"""``stopped``: a run that nobody executes now; the next `fedchoir sweep` continues it."""
QUEUED = ("PENDING", "REQUEUED", "CONFIGURING", "SUSPENDED")


@dataclass(frozen=True)
class RunState:
    """The state of one run of a sweep."""

    job: Job
    state: str
    done: int = 0
    planned: int | None = None
    """Rounds; None before the run began."""
    intra: float | None = None
    inter: float | None = None
    """Accuracies of the last round."""
    note: str = ""


def sweep_state(jobs: Sequence[Job]) -> list[RunState]:
    """The state of every run. Nothing is written."""
    return [_state(job) for job in jobs]


def _state(job: Job) -> RunState:
    try:
        finished = is_finished(job)
    except UsageError as error:
        return RunState(job, "failed", note=str(error))
    rounds = [event for event in read_events(job.out / "events.jsonl") if event["round"] >= 0]
    task = job.out / "task.json"
    planned = json.loads(task.read_text())["rounds"] if task.exists() else job.experiment.rounds
    last = rounds[-1] if rounds else {}
    state, note = ("finished", "") if finished else _unfinished(job, begun=bool(rounds) or task.exists())
    return RunState(job, state, len(rounds), planned, last.get("intra_avg"), last.get("inter_avg"), note)


def _unfinished(job: Job, begun: bool) -> tuple[str, str]:
    """The state of a run without a result, and what explains it."""
    record, end = read_record(job), read_end(job)
    number = f"job {record['job']}" if record else ""
    if lock_path(job.out).exists() and is_locked(job):
        return "running", number
    if end is not None and end["event"] == "failed":
        return "failed", end.get("why", "")
    slurm = job_state(job) if end is None else None
    if slurm in QUEUED:
        return "queued", number
    if slurm == "RUNNING":
        return "running", number
    return ("stopped" if begun else "not started"), f"{number} {slurm}" if slurm else number
