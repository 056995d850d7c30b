"""Runs the jobs of a sweep on a Slurm cluster through submitit: one array for all that wait, one task of it per run.

Beside the run folders, ``.slurm/`` holds JSON files for the job of each run: what to run, its number in the queue, and
how it ended. submitit pickles a `ClusterRun`, which is the path of such a file, for its own process on a node. Nothing
here reads a pickle. A job that is preempted or out of time ends its round, returns to the queue and continues there.
The jobs outlive the command that submitted them; the same command finds them again.
"""

import json
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedchoir.core.result import read_events
from fedchoir.experiments.backend import ENDS, KILL_AFTER, Status, task_of
from fedchoir.experiments.scheduler import is_finished
from fedchoir.experiments.sweep import Job
from fedchoir.experiments.sweep_worker import job_of, redirect_output, run_job
from fedchoir.utils.errors import Interrupted, UsageError
from fedchoir.utils.io import atomic_write_json
from fedchoir.utils.stop_signals import GRACE, stop_now
from fedchoir.utils.threads import threads_for

LOCAL = "local"  # the partition that stands for processes on this machine
MAX_ARRAY = 1000  # tasks in one array; Slurm's default limit is 1001
TIME_OUTS = 50  # times that a job may reach its time limit and return to the queue
INTERVAL = 10.0  # seconds between two looks at the folders of runs on other machines
SUBMISSIONS = 4  # times that a job is submitted if its process or node dies
SHORT = {"gpus": "gpus_per_node", "cpus": "cpus_per_task", "memory": "mem", "jobs": "array_parallelism"}
DEFAULTS: dict[str, Any] = {"time": 240, "signal_delay_s": 120}
FINAL = {"CANCELLED": "somebody cancelled it", "OUT_OF_MEMORY": "it needs more memory: --slurm-set mem=64GB"}
"""States after which a job is not submitted again."""


class ClusterRun:
    """What submitit calls on the node, and again after each preemption: the run that a JSON file describes."""

    def __init__(self, task: str) -> None:
        self.task = task

    def __call__(self) -> None:
        path = Path(self.task)
        task = json.loads(path.read_text())
        job = job_of(task)
        redirect_output(job)
        torch.set_num_threads(task["threads"] or threads_for(1))
        os.environ[GRACE] = str(task["grace"])
        events: list[str] = []

        def send(event: str, **facts: Any) -> None:
            events.append(event)
            if event in ENDS and event != "stopped":
                atomic_write_json(_end_file(job), {"event": event, **facts})

        requeue = signal.signal(signal.SIGUSR2, stop_now)  # submitit would leave in the middle of a round
        try:
            run_job(job, send)
        finally:
            signal.signal(signal.SIGUSR2, requeue)
        if "stopped" in events and callable(requeue):
            requeue(signal.SIGUSR2, None)

    def checkpoint(self) -> Any:
        """The call that goes back to the queue. The rest of the run is in its own checkpoint."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


@dataclass
class _Submitted:
    """A run whose job is in the queue or on a node."""

    job: Job
    handle: Any
    submissions: int
    rounds: int | None = None
    """Rounds that were reported; None before the run began."""
    lost: float | None = None
    """When its job was first seen to be over without a report."""


class Cluster:
    """A `Backend` of `run_jobs`: the queue of a Slurm partition, or processes on this machine for a test."""

    def __init__(self, folder: Path, partition: str, settings: Mapping[str, str], at_once: int | None = None) -> None:
        self.stopping = False
        self._executor = make_executor(folder, partition, settings, at_once)
        self._run_grace = grace_of(settings)
        self._places = (at_once or 1) if partition == LOCAL else None
        self._interval, self._grace = (0.2, 1.0) if partition == LOCAL else (INTERVAL, 60.0)
        self._waiting: list[tuple[Job, int]] = []
        self._submitted: dict[str, _Submitted] = {}

    def has_room(self, job: Job) -> bool:
        return self._places is None or len(self._waiting) + len(self._submitted) < self._places

    def start(self, job: Job) -> None:
        record = read_record(job)
        handle = self._executor.job_class(self._executor.folder, record["job"]) if record else None
        if record and handle and not _end_file(job).exists() and not handle.done(force_check=True):
            self._submitted[job.name] = _Submitted(job, handle, record["submissions"])  # by an earlier command
        else:
            self._waiting.append((job, 1))

    def poll(self, seconds: float) -> Iterator[tuple[Job, Status]]:
        while self._waiting:
            batch, self._waiting = self._waiting[:MAX_ARRAY], self._waiting[MAX_ARRAY:]
            self._submit(batch)
        time.sleep(max(seconds, self._interval))
        for name, submitted in list(self._submitted.items()):
            yield from ((submitted.job, status) for status in self._progress(submitted))
            status = self._end_of(submitted)
            if status is not None:
                del self._submitted[name]
                if status["event"] == "lost":
                    self._waiting.append((submitted.job, submitted.submissions + 1))
                else:
                    yield submitted.job, status

    def stop(self) -> None:
        """There is nothing to wait for: the jobs stay in the queue; `fedchoir sweep` finds them again."""
        raise Interrupted

    def close(self) -> None:
        """As `stop`."""

    def _submit(self, batch: Sequence[tuple[Job, int]]) -> None:
        calls = []
        for job, _ in batch:
            _end_file(job).unlink(missing_ok=True)
            more = {"threads": None if self._places is None else threads_for(self._places), "grace": self._run_grace}
            atomic_write_json(_slurm_file(job, ".task.json"), {**task_of(job), **more})
            calls.append(ClusterRun(str(_slurm_file(job, ".task.json").resolve())))
        try:
            handles = self._executor.submit_array(calls)
        except (RuntimeError, OSError) as error:  # submitit's own errors are RuntimeErrors
            raise UsageError(f"Slurm did not accept the sweep: {_last_line(error)}") from None
        for (job, submissions), handle in zip(batch, handles, strict=True):
            facts = {"job": handle.job_id, "local": self._places is not None, "submissions": submissions}
            atomic_write_json(_slurm_file(job, ".json"), facts)
            self._submitted[job.name] = _Submitted(job, handle, submissions)

    def _progress(self, submitted: _Submitted) -> Iterator[Status]:
        """Rounds that are new in the folder of the run. After a preemption some are computed a second time."""
        out = submitted.job.out
        if not (out / "task.json").exists():
            return
        rounds = [event for event in read_events(out / "events.jsonl") if event["round"] >= 0]
        if submitted.rounds is None:
            planned = json.loads((out / "task.json").read_text())["rounds"]
            yield {"event": "began", "rounds": planned, "done": len(rounds)}
        else:
            for event in rounds[submitted.rounds :]:
                yield {
                    "event": "round", "round": event["round"], "intra": event["intra_avg"], "inter": event["inter_avg"]
                }  # fmt: skip
        submitted.rounds = max(len(rounds), submitted.rounds or 0)

    def _end_of(self, submitted: _Submitted) -> Status | None:
        """How a job ended; ``lost`` if its process or node died and it should be submitted again."""
        job = submitted.job
        if _end_file(job).exists():
            return dict(json.loads(_end_file(job).read_text()))
        if not submitted.handle.done():
            submitted.lost = None
            return None
        submitted.lost = submitted.lost or time.monotonic()
        if time.monotonic() - submitted.lost < self._grace:  # a shared file system shows new files late
            return None
        if is_finished(job):
            return {"event": "finished"}
        state = str(submitted.handle.state).split()[0]
        ended = f"its job {submitted.handle.job_id} ended as {state}"
        if state in FINAL:
            return {"event": "failed", "why": f"{ended}: {FINAL[state]}"}
        if submitted.submissions >= SUBMISSIONS:
            return {"event": "failed", "why": f"{ended}; it was submitted {SUBMISSIONS} times"}
        return {"event": "lost"}


def make_executor(folder: Path, partition: str, settings: Mapping[str, str], at_once: int | None) -> Any:
    """submitit's executor; its files go to ``.slurm/jobs``. Wrong settings are one line."""
    try:
        from submitit import LocalExecutor, SlurmExecutor
    except ModuleNotFoundError:
        raise UsageError("submitit is not installed: pip install 'fedchoir[slurm]'") from None
    values = parse_settings(settings, SlurmExecutor._valid_parameters())
    files = folder / ".slurm" / "jobs"
    if partition == LOCAL:
        here = LocalExecutor(files, max_num_timeout=TIME_OUTS)
        here.update_parameters(timeout_min=values["time"], signal_delay_s=values["signal_delay_s"])
        return here
    try:
        executor = SlurmExecutor(files, max_num_timeout=TIME_OUTS)
    except RuntimeError:
        raise UsageError(
            f"--slurm {partition}: there is no srun on this machine; submit from a login node of the cluster, "
            f"or try the sweep without one: --slurm {LOCAL}"
        ) from None
    extra = {"requeue": True}  # also when a node fails
    parallel = {} if at_once is None else {"array_parallelism": at_once}
    executor.update_parameters(
        **{"partition": partition, "job_name": "fedchoir", **parallel, **values, "additional_parameters": extra}
    )
    return executor


def parse_settings(settings: Mapping[str, str], valid: set[str]) -> dict[str, Any]:
    """The values of ``--slurm-set`` by sbatch's names, with defaults.

    >>> parse_settings({"time": "1-12:00:00", "gpus": "1"}, {"time", "gpus_per_node"})
    {'time': 2160, 'signal_delay_s': 120, 'gpus_per_node': 1}
    """
    texts = ("setup", "teardown", "srun_args", "additional_parameters")
    known = {name for name in valid if name not in texts}
    values = dict(DEFAULTS)
    for key, text in settings.items():
        name = SHORT.get(key, key.replace("-", "_"))
        if name not in known:
            names = ", ".join(sorted({*known, *SHORT}))
            raise UsageError(f"--slurm-set {key}={text}: {key} is not known; it should be one of {names}")
        values[name] = minutes(text) if name == "time" else int(text) if text.isdecimal() else text
    return values


def grace_of(settings: Mapping[str, str]) -> float:
    """Seconds for the round, of those between Slurm's warning and the end of a job. A checkpoint needs the rest.

    >>> grace_of({"time": "90"}), grace_of({"signal-delay-s": "600"})
    (80.0, 400.0)
    """
    given = {key.replace("-", "_"): text for key, text in settings.items()}
    return float(given.get("signal_delay_s", DEFAULTS["signal_delay_s"])) / KILL_AFTER


def minutes(text: str) -> int:
    """A time limit in minutes from Slurm's formats: minutes, H:MM:SS or D-HH:MM:SS.

    >>> minutes("90"), minutes("4:00:00"), minutes("2-00:30:00")
    (90, 240, 2910)
    """
    if re.fullmatch(r"\d+", text):
        return max(1, int(text))
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)", text)
    if found is None:
        raise UsageError(f"--slurm-set time={text} is no time: it should be minutes (90), 4:00:00 or 2-00:00:00")
    days, hours, rest, seconds = (int(number or 0) for number in found.groups())
    return max(1, days * 1440 + hours * 60 + rest + (seconds > 0))


def read_record(job: Job) -> dict[str, Any] | None:
    """The number of a run's job in the queue, if it was ever submitted."""
    path = _slurm_path(job, ".json")
    return dict(json.loads(path.read_text())) if path.exists() else None


def read_end(job: Job) -> Status | None:
    """How the last job of a run ended, as it reported itself."""
    path = _slurm_path(job, ".end.json")
    return dict(json.loads(path.read_text())) if path.exists() else None


def job_state(job: Job) -> str | None:
    """Slurm's state of a run's job, such as PENDING; None where it was not submitted to Slurm or submitit is absent."""
    record = read_record(job)
    if record is None or record["local"]:
        return None
    try:
        from submitit import SlurmJob
    except ModuleNotFoundError:
        return None
    handle: Any = SlurmJob(job.out.parent / ".slurm" / "jobs", record["job"])
    return str(handle.state).split()[0]


def _slurm_path(job: Job, suffix: str) -> Path:
    return job.out.parent / ".slurm" / f"{job.out.name}{suffix}"


def _slurm_file(job: Job, suffix: str) -> Path:
    path = _slurm_path(job, suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _end_file(job: Job) -> Path:
    return _slurm_path(job, ".end.json")


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
