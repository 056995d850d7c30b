"""Running the jobs of a sweep: several processes at once, each run once, nothing lost when one of them dies.

What has been done is read from the run folders themselves: a ``result.json`` is a finished run, a checkpoint is one to
go on with. A run is locked by the process that plays it, so two sweeps may share a folder; the lock goes with the
process, however it ends. A process in which something went wrong is not used again, so a crash is that run's alone.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedchoir.core.checkpoint import write_json
from fedchoir.experiments import config as experiments
from fedchoir.experiments.run import differences
from fedchoir.experiments.sweep import Job
from fedchoir.utils.errors import UsageError
from fedchoir.utils.threads import threads_for

POLL = 0.5  # seconds between looks at runs that another sweep plays
FREE_TO_DIFFER = {"out", "data_root", "device", "devices"}
ENDS = ("finished", "there", "failed", "busy")


@dataclass(frozen=True)
class Outcome:
    """How a job ended: ``finished`` now, ``there`` already, or ``failed`` (and why, and where its log is)."""

    job: Job
    state: str
    why: str = ""
    log: Path | None = None
    seconds: float = 0.0


Said = dict[str, Any]
"""What a process says of its run: {"event": "began" | "round" | "finished" | "there" | "failed" | "busy", …}."""
Watch = Callable[[Job, Said], None]


def run_jobs(jobs: Sequence[Job], processes: int = 1, watch: Watch = lambda job, said: None) -> list[Outcome]:
    """Play every job that is not finished yet, ``processes`` at once; outcomes in the order of the jobs."""
    with _Crew(min(processes, len(jobs)) or 1, watch) as crew:
        waiting = list(jobs)
        while waiting or crew.busy:
            waiting = [job for job in waiting if not crew.take(job)]
            waiting += crew.listen(timeout=POLL)
    return [crew.outcomes[job.name] for job in jobs]


def is_finished(job: Job) -> bool:
    """Whether the run is there already; a different run in its folder is an error."""
    toml = job.out / "experiment.toml"
    if not toml.exists():
        return False
    before = experiments.make(experiments.read(toml))
    if changed := differences(before, job.experiment, FREE_TO_DIFFER):
        raise UsageError(f"{job.out} holds another run: {changed}; another --out starts anew")
    return (job.out / "result.json").exists()


def lock_of(job: Job) -> FileLock:
    folder = job.out.parent / ".locks"
    folder.mkdir(parents=True, exist_ok=True)
    return FileLock(folder / f"{job.out.name}.lock", timeout=0)


def is_locked(job: Job) -> bool:
    try:
        with lock_of(job):
            return False
    except Timeout:
        return True


def log_of(job: Job) -> Path:
    """Where everything goes that a run prints."""
    folder = job.out.parent / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{job.out.name}.log"


class _Crew:
    """The processes, and what has become of each job."""

    def __init__(self, places: int, watch: Watch) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self._places = places
        self._watch = watch
        self._workers: list[_Worker] = []
        self._said: queue.Queue[tuple[_Worker, Said]] = queue.Queue()

    @property
    def busy(self) -> bool:
        return any(worker.job for worker in self._workers)

    def take(self, job: Job) -> bool:
        """Whether the job is dealt with: done already, or given to a process. Not if it must wait."""
        idle = next((worker for worker in self._workers if worker.job is None), None)
        if idle is None and len(self._workers) >= self._places:
            return False
        try:
            finished = is_finished(job)
        except UsageError as error:
            self._end(Outcome(job, "failed", str(error)))
            return True
        if finished:
            self._end(Outcome(job, "there"))
            return True
        if is_locked(job):
            return False
        if idle is None:
            idle = _Worker(threads_for(self._places), self._said)
            self._workers.append(idle)
        idle.begin(job)
        return True

    def listen(self, timeout: float) -> list[Job]:
        """Hear one thing that a process says, or nothing for a while; gives back a job that must wait after all."""
        try:
            worker, said = self._said.get(timeout=timeout)
        except queue.Empty:
            return []
        job = worker.job
        if said["event"] == "gone" or said.get("leaving"):
            self._workers = [other for other in self._workers if other is not worker]
        if job is None:
            return []
        if said["event"] == "gone":
            said = {"event": "failed", "why": worker.how_it_ended()}
        if said["event"] not in ENDS:
            self._watch(job, said)
            return []
        outcome = worker.outcome(said)
        if said["event"] == "busy":
            return [job]
        self._end(outcome)
        return []

    def _end(self, outcome: Outcome) -> None:
        self.outcomes[outcome.job.name] = outcome
        self._watch(outcome.job, {"event": outcome.state, "why": outcome.why, "seconds": outcome.seconds})

    def __enter__(self) -> _Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.stop()


class _Worker:
    """A process that plays runs, one after the other. Its standard input stays open as long as we live."""

    def __init__(self, threads: int, said: queue.Queue[tuple[_Worker, Said]]) -> None:
        self.job: Job | None = None
        self._start = 0.0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedchoir.experiments.job_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)},
        )
        threading.Thread(target=self._hear, args=(said,), daemon=True).start()

    def begin(self, job: Job) -> None:
        self.job, self._start = job, time.perf_counter()
        task = {"name": job.name, "label": job.label, "experiment": job.experiment.model_dump(mode="json")}
        assert self._process.stdin is not None
        with suppress(OSError):  # a process that is dead is heard to be gone
            self._process.stdin.write(json.dumps(task) + "\n")
            self._process.stdin.flush()

    def _hear(self, said: queue.Queue[tuple[_Worker, Said]]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):  # else the process died in the middle of it
                said.put((self, json.loads(line)))
        self._process.wait()
        said.put((self, {"event": "gone"}))

    def outcome(self, said: Said) -> Outcome:
        """What became of the job; the process has none from here on."""
        assert self.job is not None
        job, self.job = self.job, None
        log = log_of(job) if said["event"] == "failed" else None
        return Outcome(job, said["event"], said.get("why", ""), log, time.perf_counter() - self._start)

    def how_it_ended(self) -> str:
        code = self._process.returncode
        return f"its process was killed by signal {-code}" if code < 0 else f"its process ended with {code}"

    def stop(self) -> None:
        """A run at work stops where it is; its last checkpoint is whole."""
        self._process.kill()
        self._process.wait()


def write_manifest(out: Path, table: str | None, title: str, jobs: Sequence[Job]) -> None:
    """Write ``sweep.json``: the labels and published rows of the runs in this folder, added to those it already has."""
    path = out / "sweep.json"
    out.mkdir(parents=True, exist_ok=True)
    try:
        before = json.loads(path.read_text())
        runs, published = dict(before["runs"]), dict(before.get("published", {}))
    except (OSError, ValueError, KeyError, TypeError):
        runs, published = {}, {}
    runs |= {job.name: job.label for job in jobs}
    published |= {job.name: list(job.published) for job in jobs if job.published}
    write_json(path, {"table": table, "title": title, "runs": runs, "published": published})
