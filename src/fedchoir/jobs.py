"""Running the jobs of a sweep: several processes at once, each run once, nothing lost when one of them dies.

What has been done is read from the run folders themselves: a ``result.json`` is a finished run, a checkpoint is one to
go on with. A run is locked by the process that plays it, so two sweeps may share a folder; the lock goes with the
process, however it ends. One process plays one run, so a crash is that run's alone and memory is given back.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from fedchoir import experiment as experiments
from fedchoir.errors import UsageError
from fedchoir.federation.checkpoint import write_json
from fedchoir.runner import differences
from fedchoir.sweep import Job

POLL = 0.5  # seconds between looks at runs that another sweep plays
FREE_TO_DIFFER = {"out", "data_root", "device"}


@dataclass(frozen=True)
class Outcome:
    """How a job ended: ``finished`` now, ``there`` already, or ``failed`` (and why, and where its log is)."""

    job: Job
    state: str
    why: str = ""
    log: Path | None = None
    seconds: float = 0.0


Watch = Callable[[Job, dict[str, Any]], None]
"""Told what a run says: {"event": "began" | "round" | "there" | "finished" | "failed", …}."""


def run_jobs(jobs: Sequence[Job], processes: int = 1, watch: Watch = lambda job, said: None) -> list[Outcome]:
    """Play every job that is not finished yet, ``processes`` at once; outcomes in the order of the jobs."""
    crew = _Crew(max(1, processes), watch)
    with crew:
        waiting = list(jobs)
        while waiting or crew.busy:
            waiting = [job for job in waiting if not crew.take(job)]
            waiting += crew.listen(timeout=POLL)
    return [crew.outcomes[job.name] for job in jobs]


def threads_for(processes: int) -> int:
    """Cores for each of several processes; a smaller OMP_NUM_THREADS of the user's is kept."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = max(1, cores // processes)
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return min(share, int(wanted)) if wanted.isdecimal() and int(wanted) else share


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


class _Crew:
    """The processes at work, and what has become of each job."""

    def __init__(self, processes: int, watch: Watch) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self._places = processes
        self._watch = watch
        self._at_work: dict[str, _Worker] = {}
        self._said: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()

    @property
    def busy(self) -> bool:
        return bool(self._at_work)

    def take(self, job: Job) -> bool:
        """Whether the job is dealt with: done already, or given to a process. Not if it must wait."""
        if len(self._at_work) >= self._places:
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
        self._at_work[job.name] = _Worker(job, threads_for(self._places), self._said)
        return True

    def listen(self, timeout: float) -> list[Job]:
        """Hear one thing that a process says, or nothing for a while; gives back a job that must wait after all."""
        try:
            name, said = self._said.get(timeout=timeout)
        except queue.Empty:
            return []
        worker = self._at_work[name]
        if said["event"] == "gone":
            del self._at_work[name]
            if worker.last.get("event") == "busy":
                return [worker.job]
            self._end(worker.outcome())
        elif said["event"] in ("finished", "there", "failed", "busy"):
            worker.last = said
        else:
            self._watch(worker.job, said)
        return []

    def _end(self, outcome: Outcome) -> None:
        self.outcomes[outcome.job.name] = outcome
        self._watch(outcome.job, {"event": outcome.state, "why": outcome.why, "seconds": outcome.seconds})

    def __enter__(self) -> _Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._at_work.values():
            worker.stop()


class _Worker:
    """A process that plays one run. It speaks JSON lines; its standard input stays open as long as we live."""

    def __init__(self, job: Job, threads: int, said: queue.Queue[tuple[str, dict[str, Any]]]) -> None:
        self.job = job
        self.last: dict[str, Any] = {}
        self.log = job.out.parent / "logs" / f"{job.out.name}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._start = time.perf_counter()
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fedchoir.jobs"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment,
            )  # fmt: skip
        assert self._process.stdin is not None
        task = {"experiment": job.experiment.model_dump(mode="json"), "name": job.name, "label": job.label}
        with suppress(OSError):  # a process that died at once is found dead below
            self._process.stdin.write(json.dumps({**task, "threads": threads}) + "\n")
            self._process.stdin.flush()
        threading.Thread(target=self._hear, args=(said,), daemon=True).start()

    def _hear(self, said: queue.Queue[tuple[str, dict[str, Any]]]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):  # else the process died in the middle of it
                said.put((self.job.name, json.loads(line)))
        self._process.wait()
        said.put((self.job.name, {"event": "gone"}))

    def outcome(self) -> Outcome:
        state = self.last.get("event", "failed")
        code = self._process.returncode
        gone = f"its process was killed by signal {-code}" if code < 0 else f"its process ended with {code}"
        why = "" if state != "failed" else self.last.get("why", gone)
        return Outcome(self.job, state, why, self.log, time.perf_counter() - self._start)

    def stop(self) -> None:
        """The run stops where it is; its last checkpoint is whole."""
        self._process.kill()
        self._process.wait()


# -- inside the process of one run -------------------------------------------------------------------------------------


class _Teller:
    """An `Observer` that tells the sweep about every round."""

    def __init__(self, say: Callable[..., None]) -> None:
        self._say = say

    def began(self, plan: Any, task: Any, done: list[Any]) -> None:
        self._say("began", rounds=task.rounds, done=len([e for e in done if e["round"] >= 0]))

    def client(self, name: str, phase: str) -> None:
        pass

    def round(self, event: dict[str, Any]) -> None:
        self._say("round", round=event["round"], intra=event["intra_avg"], inter=event["inter_avg"])

    def ended(self) -> None:
        pass


def work() -> None:
    """``python -m fedchoir.jobs``: play the run that comes as one line of JSON on standard input."""
    with _private_voice() as voice:

        def say(event: str, **facts: Any) -> None:
            voice.write(json.dumps({"event": event, **facts}) + "\n")
            voice.flush()

        given = json.loads(sys.stdin.readline())
        threading.Thread(target=_leave_with_the_sweep, daemon=True).start()
        experiment = experiments.make(given["experiment"])
        job = Job(given["name"], given["label"], experiment)
        try:
            with lock_of(job):
                if is_finished(job):
                    return say("there")
                _play(job, given["threads"], say)
                say("finished")
        except Timeout:  # another sweep took the run since ours looked
            say("busy")
        except UsageError as error:
            say("failed", why=str(error))
        except Exception as error:
            say("failed", why=f"{type(error).__name__}: {error}".splitlines()[0])
            raise


def _play(job: Job, threads: int, say: Callable[..., None]) -> None:
    import torch

    from fedchoir.runner import run
    from fedchoir.ui.status import LiveStatus

    torch.set_num_threads(threads)
    run(job.experiment, resume=True, observers=[_Teller(say), LiveStatus()])


@contextmanager
def _private_voice() -> Iterator[IO[str]]:
    """Our standard output for messages alone: whatever a library prints goes to the log."""
    with os.fdopen(os.dup(1), "w") as voice:
        os.dup2(2, 1)
        yield voice


def _leave_with_the_sweep() -> None:
    """When the sweep is gone, even killed, our standard input ends: do not go on unseen."""
    sys.stdin.read()
    os._exit(1)


def write_manifest(out: Path, table: str | None, title: str, jobs: Sequence[Job]) -> None:
    """``sweep.json``: what tables call the runs in this folder."""
    path = out / "sweep.json"
    out.mkdir(parents=True, exist_ok=True)
    try:
        before = json.loads(path.read_text())["runs"]
    except (OSError, ValueError, KeyError, TypeError):
        before = {}
    write_json(path, {"table": table, "title": title, "runs": {**before, **{job.name: job.label for job in jobs}}})


if __name__ == "__main__":
    work()
