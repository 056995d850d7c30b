"""Runs the jobs of a sweep, several at once, each once; a run that dies does not stop the others.

A signal stops a sweep: its runs end their round and write it. A second one kills them.
The run folders hold the state: ``result.json`` marks a finished run, a checkpoint one to continue. The process that
executes a run holds its lock, so two sweeps may share a folder; the system releases the lock when the process ends.
`fedchoir.experiments.sweep_worker` is such a process.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout

from fedchoir.experiments.config import read_experiment
from fedchoir.experiments.run import MAY_CHANGE, differences
from fedchoir.experiments.sweep import Job
from fedchoir.utils.errors import Interrupted, UsageError, WorkerError
from fedchoir.utils.io import atomic_write_json
from fedchoir.utils.stop_signals import GRACE, StopSignals, grace_seconds
from fedchoir.utils.subprocess_channel import ChildProcess
from fedchoir.utils.threads import threads_for

WORKER = "fedchoir.experiments.sweep_worker"
POLL = 0.5  # seconds between two looks at runs that another sweep executes
KILL_AFTER = 1.5  # grace periods: after the first a run stops in its round, and has the rest to write a checkpoint
ENDS = ("finished", "skipped", "failed", "locked", "stopped")

Status = dict[str, Any]
"""A report of a run: {"event": "began" | "round" | "finished" | "skipped" | "failed" | "locked" | "stopped", …}."""


@dataclass(frozen=True)
class Outcome:
    """How a job ended: ``finished`` now, ``skipped`` (finished before), ``failed``: why, and where its log is,
    ``stopped``: what was saved, or ``waiting``: not started when the others were stopped."""

    job: Job
    state: str
    why: str = ""
    log: Path | None = None
    seconds: float = 0.0


class Backend(Protocol):
    """Where jobs are executed: `LocalProcesses`, or the queue of a cluster (`fedchoir.experiments.cluster`)."""

    stopping: bool
    """Whether nothing is started any more and what runs is asked to end."""

    def has_room(self) -> bool:
        """Whether `start` may be called."""

    def start(self, job: Job) -> None:
        """Begin or continue a run: `run_job` in some process."""

    def poll(self, seconds: float) -> Iterator[tuple[Job, Status]]:
        """Reports of the jobs that were started; waits for the first at most so many seconds."""

    def stop(self) -> None:
        """Begin to stop; `poll` reports the runs that do."""

    def close(self) -> None:
        """Kill what still runs. Checkpoints stay intact."""


def run_jobs(
    jobs: Sequence[Job],
    processes: int = 1,
    watch: Callable[[Job, Status], None] = lambda job, status: None,
    backend: Backend | None = None,
) -> list[Outcome]:
    """Execute every job that is not finished; outcomes in the order of the jobs. ``watch`` gets every report. After a
    signal the runs stop; a second one raises `Interrupted`."""
    outcomes: dict[str, Outcome] = {}
    started: dict[str, float] = {}
    waiting = list(jobs)

    def end(job: Job, state: str, why: str = "") -> None:
        log = log_of(job) if state == "failed" and job.name in started else None
        seconds = time.perf_counter() - started.get(job.name, time.perf_counter())
        outcomes[job.name] = Outcome(job, state, why, log, seconds)
        watch(job, {"event": state, "why": why, "seconds": seconds})

    backend = backend or LocalProcesses(min(processes, len(jobs)) or 1)

    def ask(stop: type[Interrupted]) -> None:
        if backend.stopping:
            raise stop
        backend.stop()
        sys.stderr.write("fedchoir: stopping; each run ends its round and writes it; Ctrl-C again kills them\n")

    with closing(backend), StopSignals(ask):
        while len(outcomes) < len(jobs):
            if backend.stopping and len(outcomes) + len(waiting) == len(jobs):
                outcomes |= {job.name: Outcome(job, "waiting") for job in waiting}
                break
            for job in list(waiting) if backend.has_room() else ():
                try:
                    if is_finished(job):
                        end(job, "skipped")
                    elif backend.has_room() and not is_locked(job):
                        started[job.name] = time.perf_counter()
                        backend.start(job)
                    else:
                        continue
                except UsageError as error:
                    end(job, "failed", str(error))
                waiting.remove(job)
            for job, status in backend.poll(POLL) if len(outcomes) < len(jobs) else ():
                if status["event"] == "locked":  # another sweep took it since we looked
                    waiting.append(job)
                elif status["event"] in ENDS:
                    end(job, status["event"], status.get("why", ""))
                else:
                    watch(job, status)
    return [outcomes[job.name] for job in jobs]


class LocalProcesses:
    """Worker processes on this machine that share its cores. One in which a run failed is not used again."""

    def __init__(self, places: int, grace: float | None = None) -> None:
        """``grace``: seconds that runs have to end their round (default: see `fedchoir.utils.stop_signals`)."""
        self.stopping = False
        self._kill_at: float | None = None  # what still runs then
        self._places = places
        self._grace = grace_seconds() if grace is None else grace
        self._idle: list[ChildProcess] = []
        self._running: dict[ChildProcess, Job] = {}

    def has_room(self) -> bool:
        return len(self._running) < self._places and not self.stopping

    def start(self, job: Job) -> None:
        threads = str(threads_for(self._places))
        environment = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, GRACE: str(self._grace)}
        child = self._idle.pop() if self._idle else ChildProcess.spawn("its process", WORKER, environment)
        self._running[child] = job
        with suppress(WorkerError):  # poll reports a process that has died
            child.send([json.dumps(task_of(job)).encode()])

    def poll(self, seconds: float) -> Iterator[tuple[Job, Status]]:
        if not self._running:
            time.sleep(seconds)
        if self.stopping:
            self._ask_to_stop()
        for child in wait(list(self._running), seconds):  # type: ignore[arg-type]
            assert isinstance(child, ChildProcess)
            job = self._running[child]
            try:
                status = json.loads(child.receive()[0])
            except WorkerError as error:
                status = {"event": "failed", "why": str(error), "broken": True}
                if self.stopping:  # a run that has not begun its rounds has nothing to save
                    status |= {"event": "stopped", "why": "it did not stop in time" if self._is_late() else ""}
            if status["event"] in ENDS:
                del self._running[child]
                if status.get("broken"):
                    child.close()
                else:
                    self._idle.append(child)
            yield job, status

    def stop(self) -> None:
        self.stopping = True

    def _ask_to_stop(self) -> None:
        """Once; what does not stop is killed."""
        if self._kill_at is None:
            self._kill_at = time.monotonic() + KILL_AFTER * self._grace
            for child in self._running:
                child.ask_to_stop()
        elif self._is_late():
            for child in self._running:
                child.kill()  # poll reports it

    def _is_late(self) -> bool:
        return self._kill_at is not None and time.monotonic() > self._kill_at

    def close(self) -> None:
        for child in (*self._idle, *self._running):
            child.close()


def is_finished(job: Job) -> bool:
    """Whether the run has a result; a different run in its folder is an error."""
    toml = job.out / "experiment.toml"
    if not toml.exists():
        return False
    if changed := differences(read_experiment(toml), job.experiment, MAY_CHANGE):
        raise UsageError(f"{job.out} holds another run: {changed}; another --out starts a new one")
    return (job.out / "result.json").exists()


def lock_of(job: Job) -> FileLock:
    """The lock that the process of a run holds."""
    lock_path(job).parent.mkdir(parents=True, exist_ok=True)
    return FileLock(lock_path(job), timeout=0)


def lock_path(job: Job) -> Path:
    return job.out.parent / ".locks" / f"{job.out.name}.lock"


def is_locked(job: Job) -> bool:
    try:
        with lock_of(job):
            return False
    except Timeout:
        return True


def log_of(job: Job) -> Path:
    """The file for everything that a run prints."""
    path = job.out.parent / "logs" / f"{job.out.name}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def write_manifest(out: Path, table: str | None, title: str, jobs: Sequence[Job]) -> None:
    """Write ``sweep.json``: the labels and published rows of the runs in this folder, added to those it already has."""
    path = out / "sweep.json"
    try:
        before = json.loads(path.read_text())
        runs, published = dict(before["runs"]), dict(before.get("published", {}))
    except (OSError, ValueError, KeyError, TypeError):
        runs, published = {}, {}
    runs |= {job.name: job.label for job in jobs}
    published |= {job.name: list(job.published) for job in jobs if job.published}
    atomic_write_json(path, {"table": table, "title": title, "runs": runs, "published": published})


def task_of(job: Job) -> dict[str, Any]:
    """A job as JSON, for the process that executes it."""
    experiment = job.experiment.model_dump(mode="json")
    return {"name": job.name, "label": job.label, "experiment": experiment, "track": job.track}
