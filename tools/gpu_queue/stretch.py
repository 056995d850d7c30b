"""As many runs of a queue as fit into a stretch of time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedchoir.experiments.backend import KILL_AFTER, Status
from fedchoir.experiments.local_processes import LocalProcesses
from fedchoir.experiments.placement import JobCount, Places, make_places
from fedchoir.experiments.scheduler import Outcome, run_jobs, write_manifest
from fedchoir.experiments.sweep import Job, read_sweep
from fedchoir.utils.errors import UsageError
from tools.gpu_queue.tasks import Task

UNUSED_END = 0.1  # share of a stretch before its margin in which no run starts, at most a minute: it would save nothing


class Stretch(LocalProcesses):
    """Worker processes until a moment. In the ``margin`` before it what runs ends its round, and nothing starts in the
    ``unused`` seconds before that."""

    def __init__(self, places: Places, end: float, margin: float, unused: float) -> None:
        super().__init__(places, grace=margin / KILL_AFTER)
        self._stop_at, self._last_start = end - margin, end - margin - unused

    def has_room(self, job: Job) -> bool:
        self._look_at_the_clock()
        return time.monotonic() <= self._last_start and super().has_room(job)

    def poll(self, seconds: float) -> Iterator[tuple[Job, Status]]:
        self._look_at_the_clock()
        yield from super().poll(min(seconds, max(0.1, self._stop_at - time.monotonic())))

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        if now > self._stop_at or (now > self._last_start and not self._running):
            self.stop()


def unused_end(minutes: float) -> float:
    """Seconds before the margin in which nothing starts."""
    return min(60.0, UNUSED_END * 60 * minutes)


def check_stretch(minutes: float, margin: float) -> None:
    """A stretch without time to start a run is an error."""
    if margin + (unused := unused_end(minutes)) >= 60 * minutes:
        raise UsageError(
            f"--margin {margin:g} (seconds) leaves no time of --minutes {minutes:g}: nothing starts in the {unused:g} "
            f"seconds before it, so it should be less than {60 * minutes - unused:g}"
        )


def run_stretch(tasks: Sequence[Task], minutes: float, processes: JobCount, margin: float = 60.0) -> list[Outcome]:
    """Run what is left of the queue for so many minutes, in its order."""
    check_stretch(minutes, margin)
    end = time.monotonic() + 60 * minutes
    left = [task.job for task in tasks if not task.finished]
    folders: dict[Path, list[Task]] = {}
    for task in tasks:
        folders.setdefault(task.job.out.parent, []).append(task)
    for folder, own in folders.items():
        write_manifest(folder, None, read_sweep(own[0].row.sweep).title, [task.job for task in own])
    backend = Stretch(make_places(processes, len(tasks)), end, margin, unused_end(minutes))
    return run_jobs(left, processes, print_status, backend) if left else []


def print_status(job: Job, status: Status) -> None:
    if status["event"] not in ("round", "began"):
        print(f"{job.name}: {status['event']} {status.get('why', '')}".rstrip(), flush=True)
