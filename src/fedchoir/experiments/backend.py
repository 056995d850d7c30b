"""Where the runs of a sweep are executed, and what is reported about them."""

from collections.abc import Iterator
from typing import Any, Protocol

from fedchoir.experiments.sweep import Job

KILL_AFTER = 1.5  # grace periods: after the first a run stops in its round, and has the rest to write a checkpoint
ENDS = ("finished", "skipped", "failed", "killed", "locked", "stopped")
"""Reports after which a run is executed no longer. ``killed``: a signal ended its process, or others had filled its
GPU; it may start again."""

Status = dict[str, Any]
"""A report of a run: {"event": "began" | "round" | one of `ENDS`, …}. Who watches a sweep gets "retried" for a run that
was killed and starts again."""


class Backend(Protocol):
    """Where jobs are executed: processes on this machine (`fedchoir.experiments.local_processes`) or the queue of a
    cluster (`fedchoir.experiments.cluster`)."""

    stopping: bool
    """Whether nothing is started any more and what runs is asked to end."""

    def has_room(self, job: Job) -> bool:
        """Whether `start` may be called with this run."""

    def start(self, job: Job) -> None:
        """Begin or continue a run: `run_job` in some process."""

    def poll(self, seconds: float) -> Iterator[tuple[Job, Status]]:
        """Reports of the jobs that were started; waits for the first at most so many seconds."""

    def stop(self) -> None:
        """Begin to stop; `poll` reports the runs that do."""

    def close(self) -> None:
        """Kill what still runs. Checkpoints stay intact."""


def task_of(job: Job) -> dict[str, Any]:
    """A job as JSON, for the process that executes it."""
    experiment = job.experiment.model_dump(mode="json")
    return {"name": job.name, "label": job.label, "experiment": experiment, "track": job.track}
