"""Runs the jobs of a sweep, several at once, each once; a run that dies does not stop the others.

The run folders hold the state: ``result.json`` marks a finished run, a checkpoint one to continue. The process that
executes a run holds its lock, so two sweeps may share a folder; the system releases the lock when the process ends.
``python -m fedchoir.experiments.scheduler`` is a worker process: it reports to its parent in JSON messages, and
everything that a run prints goes to the log of the run.
"""

import gc
import json
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Protocol

import torch
from filelock import FileLock, Timeout

from fedchoir.core.federation_spec import FederationSpec
from fedchoir.core.result import Event
from fedchoir.experiments.config import Experiment, Plan, read_experiment
from fedchoir.experiments.live_status import LiveStatus
from fedchoir.experiments.run import MAY_CHANGE, Observer, differences, run
from fedchoir.experiments.sweep import Job
from fedchoir.experiments.tracking import make_trackers
from fedchoir.utils.errors import UsageError, WorkerError
from fedchoir.utils.io import atomic_write_json
from fedchoir.utils.subprocess_channel import ChildProcess, parent_channel
from fedchoir.utils.threads import threads_for

WORKER = "fedchoir.experiments.scheduler"
POLL = 0.5  # seconds between two looks at runs that another sweep executes
ENDS = ("finished", "skipped", "failed", "locked")

Status = dict[str, Any]
"""A report of a run: {"event": "began" | "round" | "finished" | "skipped" | "failed" | "locked", …}."""


@dataclass(frozen=True)
class Outcome:
    """How a job ended: ``finished`` now, ``skipped`` (finished before), or ``failed``: why, and where its log is."""

    job: Job
    state: str
    why: str = ""
    log: Path | None = None
    seconds: float = 0.0


class Backend(Protocol):
    """Where jobs are executed: `LocalProcesses`, or the queue of a cluster (`fedchoir.experiments.cluster`)."""

    def has_room(self) -> bool:
        """Whether `start` may be called."""

    def start(self, job: Job) -> None:
        """Begin or continue a run: `run_job` in some process."""

    def poll(self, seconds: float) -> Iterator[tuple[Job, Status]]:
        """Reports of the jobs that were started; waits for the first at most so many seconds."""

    def close(self) -> None:
        """Stop what still runs. Checkpoints stay intact."""


def run_jobs(
    jobs: Sequence[Job],
    processes: int = 1,
    watch: Callable[[Job, Status], None] = lambda job, status: None,
    backend: Backend | None = None,
) -> list[Outcome]:
    """Execute every job that is not finished; outcomes in the order of the jobs. ``watch`` gets every report."""
    outcomes: dict[str, Outcome] = {}
    started: dict[str, float] = {}
    waiting = list(jobs)

    def end(job: Job, state: str, why: str = "") -> None:
        log = log_of(job) if state == "failed" and job.name in started else None
        seconds = time.perf_counter() - started.get(job.name, time.perf_counter())
        outcomes[job.name] = Outcome(job, state, why, log, seconds)
        watch(job, {"event": state, "why": why, "seconds": seconds})

    with closing(backend or LocalProcesses(min(processes, len(jobs)) or 1)) as backend:
        while len(outcomes) < len(jobs):
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

    def __init__(self, places: int) -> None:
        self._places = places
        self._idle: list[ChildProcess] = []
        self._running: dict[ChildProcess, Job] = {}

    def has_room(self) -> bool:
        return len(self._running) < self._places

    def start(self, job: Job) -> None:
        threads = str(threads_for(self._places))
        environment = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        child = self._idle.pop() if self._idle else ChildProcess.spawn("its process", WORKER, environment)
        self._running[child] = job
        with suppress(WorkerError):  # poll reports a process that has died
            child.send([json.dumps(task_of(job)).encode()])

    def poll(self, seconds: float) -> Iterator[tuple[Job, Status]]:
        if not self._running:
            time.sleep(seconds)
        for child in wait(list(self._running), seconds):  # type: ignore[arg-type]
            assert isinstance(child, ChildProcess)
            job = self._running[child]
            try:
                status = json.loads(child.receive()[0])
            except WorkerError as error:
                status = {"event": "failed", "why": str(error), "broken": True}
            if status["event"] in ENDS:
                del self._running[child]
                if status.get("broken"):
                    child.close()
                else:
                    self._idle.append(child)
            yield job, status

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


def job_of(task: Mapping[str, Any]) -> Job:
    return Job(task["name"], task["label"], Experiment(**task["experiment"]), track=tuple(task["track"]))


# -- a worker process --------------------------------------------------------------------------------------------------

Send = Callable[..., None]


class RoundReporter(Observer):
    """Reports the rounds of a run to the scheduler."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def began(self, plan: Plan, spec: FederationSpec, done: list[Event]) -> None:
        self._send("began", rounds=spec.rounds, done=len([event for event in done if event["round"] >= 0]))

    def round(self, event: Event) -> None:
        if event["round"] >= 0:
            self._send("round", round=event["round"], intra=event["intra_avg"], inter=event["inter_avg"])


def run_job(job: Job, send: Send) -> None:
    """Execute one run, or the rest of it, unless it is finished or another process executes it."""
    try:
        with lock_of(job):
            finished = is_finished(job)
            if not finished:
                observers = [RoundReporter(send), LiveStatus(), *make_trackers(job.track)]
                run(job.experiment, resume=True, observers=observers)
        send("skipped" if finished else "finished")
    except Timeout:
        send("locked")
    except UsageError as error:
        send("failed", why=str(error))
    except Exception as error:
        traceback.print_exc()
        why = str(error) if isinstance(error, WorkerError) else f"{type(error).__name__}: {error}"
        send("failed", why=why, broken=True)


def redirect_output(job: Job) -> None:
    """Send everything that this process prints to the log of the run."""
    with log_of(job).open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)


def main() -> None:
    channel = parent_channel()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

    def send(event: str, **facts: Any) -> None:
        channel.send([json.dumps({"event": event, **facts}).encode()])

    while True:  # until the scheduler ends this process
        job = job_of(json.loads(channel.receive()[0]))
        redirect_output(job)
        run_job(job, send)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
