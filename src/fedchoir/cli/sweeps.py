"""What sweep and reproduce share: trackers, the queue of a cluster, how far the runs are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedchoir.cli.options import console
from fedchoir.utils.errors import UsageError

if TYPE_CHECKING:
    from fedchoir.experiments.backend import Backend
    from fedchoir.experiments.sweep import Job


def tracked(planned: list[Job], track: list[str] | None) -> list[Job]:
    """The same runs, followed by these trackers."""
    if not track:
        return planned
    from fedchoir.experiments.tracking import make_trackers

    make_trackers(track)  # a missing library is told before anything starts
    return [replace(job, track=tuple(track)) for job in planned]


def slurm_backend(partition: str | None, settings: list[str] | None, folder: Path, jobs: str | None) -> Backend | None:
    """The queue of a cluster, where ``--slurm`` is given."""
    if partition is None:
        if settings:
            raise UsageError("--slurm-set belongs to --slurm PARTITION")
        return None
    from fedchoir.experiments.cluster import Cluster
    from fedchoir.experiments.placement import parse_jobs

    at_once = parse_jobs(jobs) if jobs else None
    if at_once == "auto":
        raise UsageError("--jobs auto is for runs on this machine; with --slurm give a number, or nothing for all")

    pairs = [text.partition("=") for text in settings or ()]
    if wrong := [key for key, equals, value in pairs if not (key and equals and value)]:
        raise UsageError(f"--slurm-set {wrong[0]!r} is not possible: it should be KEY=VALUE, such as time=4:00:00")
    return Cluster(folder, partition, {key.strip(): value.strip() for key, _, value in pairs}, at_once)


def print_status(planned: list[Job]) -> None:
    from fedchoir.experiments.sweep_state import sweep_state
    from fedchoir.reporting.sweep_view import state_line, state_table

    states = sweep_state(planned)
    console.print(state_table(states))
    console.print(state_line(states), highlight=False)
