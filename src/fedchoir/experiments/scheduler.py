"""Runs the jobs of a sweep, several at once, each once; a run that dies does not stop the others.

A run whose process is killed, by a system that has no memory left or by the death of another process on its GPU, or
that finds its GPU filled by others, continues from its last checkpoint in a fresh process. A signal stops a sweep: its
runs end their round and write it. A second one kills them. The run folders hold the state: ``result.json`` marks a
finished run, a checkpoint one to continue. The process that executes a run holds its lock, so two sweeps may share a
folder; the system releases the lock when the process ends. `fedchoir.experiments.sweep_worker` is such a process.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from fedchoir.experiments.backend import ENDS, Backend, Status
from fedchoir.experiments.config import read_experiment
from fedchoir.experiments.local_processes import LocalProcesses
from fedchoir.experiments.placement import JobCount, make_places
from fedchoir.experiments.run import MAY_CHANGE, differences
from fedchoir.experiments.sweep import Job
from fedchoir.utils.errors import Interrupted, UsageError
from fedchoir.utils.io import atomic_write_json
from fedchoir.utils.stop_signals import StopSignals

POLL = 0.5  # seconds between two looks at runs that another sweep executes
RETRIES = 2  # times that a run whose process was killed is started again


@dataclass(frozen=True)
class Outcome:
    """How a job ended: ``finished`` now, ``skipped`` (finished before), ``failed``: why, and where its log is,
    ``stopped``: what was saved, or ``waiting``: not started when the others were stopped."""

    job: Job
    state: str
    why: str = ""
    log: Path | None = None
    seconds: float = 0.0


def run_jobs(
    jobs: Sequence[Job],
    processes: JobCount = 1,
    watch: Callable[[Job, Status], None] = lambda job, status: None,
    backend: Backend | None = None,
    order: Callable[[list[Job]], list[Job]] = list,
) -> list[Outcome]:
    """Execute every job that is not finished, those that wait in an ``order``, of which none overtakes another that
    does not fit; outcomes in the order of the jobs. ``watch`` gets every report. After a signal the runs stop; a second
    one raises `Interrupted`. Two jobs with one folder are an error: only one of them could ever end."""
    if repeated := [folder for folder, count in Counter(job.out for job in jobs).items() if count > 1]:
        raise UsageError(f"{repeated[0]} is the folder of two runs of this sweep; each needs its own: change a label")
    backend = backend or LocalProcesses(make_places(processes, len(jobs)))
    runs = _Runs(jobs, backend, watch, order)
    asked = False  # by a signal; a back end may stop by itself

    def ask(stop: type[Interrupted]) -> None:
        nonlocal asked
        if asked:
            raise stop
        asked = True
        backend.stop()
        sys.stderr.write("fedchoir: stopping; each run ends its round and writes it; Ctrl-C again kills them\n")

    with closing(backend), StopSignals(ask):
        while not runs.are_over():
            runs.start()
            runs.follow()
    return runs.outcomes()


class _Runs:
    """The runs of a sweep: those that wait, those that were started, and how those that are over ended; by folder,
    because runs of two sweeps may have one name."""

    def __init__(
        self, jobs: Sequence[Job], backend: Backend, watch: Callable[[Job, Status], None],
        order: Callable[[list[Job]], list[Job]],
    ) -> None:  # fmt: skip
        self._jobs, self._backend, self._watch, self._order = jobs, backend, watch, order
        self._waiting = list(jobs)
        self._started: dict[Path, float] = {}
        self._deaths: Counter[Path] = Counter()
        self._over: dict[Path, Outcome] = {}

    def are_over(self) -> bool:
        """Whether none is left, except those that wait while the sweep stops."""
        waiting = len(self._waiting) if self._backend.stopping else 0
        return len(self._over) + waiting == len(self._jobs)

    def outcomes(self) -> list[Outcome]:
        left = (Outcome(job, "stopped" if job.out in self._started else "waiting") for job in self._jobs)
        return [self._over.get(outcome.job.out, outcome) for outcome in left]

    def start(self) -> None:
        """Start the next ones that there is room for; none overtakes another that does not fit."""
        for job in self._order(self._waiting):
            if not self._backend.has_room(job):
                return
            try:
                if is_finished(job):
                    self._end(job, "skipped")
                elif is_locked(job):
                    continue
                else:
                    self._started.setdefault(job.out, time.perf_counter())
                    self._backend.start(job)
            except UsageError as error:
                self._end(job, "failed", str(error))
            self._waiting.remove(job)

    def follow(self) -> None:
        """Wait for reports and pass them on."""
        for job, status in self._backend.poll(POLL) if not self.are_over() else ():
            if status["event"] == "locked":  # another sweep took it since we looked
                del self._started[job.out]
                self._waiting.append(job)
            elif status["event"] == "killed":
                self._retry(job, status["why"])
            elif status["event"] in ENDS:
                self._end(job, status["event"], status.get("why", ""))
            else:
                self._watch(job, status)

    def _retry(self, job: Job, why: str) -> None:
        self._deaths[job.out] += 1
        deaths = self._deaths[job.out]
        if self._backend.stopping:
            self._end(job, "stopped", why)
            return
        if deaths > RETRIES:
            self._end(job, "failed", f"{why}; this happened {deaths} times")
            return
        self._waiting.insert(0, job)
        again = f"{why}; it continues from its last checkpoint, retry {deaths} of {RETRIES}"
        self._watch(job, {"event": "retried", "why": again})

    def _end(self, job: Job, state: str, why: str = "") -> None:
        log = log_of(job) if state == "failed" and job.out in self._started else None
        seconds = time.perf_counter() - self._started.get(job.out, time.perf_counter())
        self._over[job.out] = Outcome(job, state, why, log, seconds)
        self._watch(job, {"event": state, "why": why, "seconds": seconds})


def is_finished(job: Job) -> bool:
    """Whether the run has a result; a different run in its folder is an error."""
    toml = job.out / "experiment.toml"
    if not toml.exists():
        return False
    if changed := differences(read_experiment(toml), job.experiment, MAY_CHANGE):
        raise UsageError(f"{job.out} holds another run: {changed}; another --out starts a new one")
    return (job.out / "result.json").exists()


def lock_of(out: Path) -> FileLock:
    """The lock that the process of the run in a folder holds."""
    path = lock_path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path, timeout=0)


def lock_path(out: Path) -> Path:
    return out.parent / ".locks" / f"{out.name}.lock"


def is_locked(job: Job) -> bool:
    try:
        with lock_of(job.out):
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
