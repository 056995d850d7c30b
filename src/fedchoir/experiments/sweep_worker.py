"""A worker process of a sweep: executes runs for `fedchoir.experiments.scheduler`.

It reports to its parent in JSON messages, and everything that a run prints goes to the log of the run. SIGUSR1 from its
parent stops it: during rounds with a checkpoint, else at once, because there is nothing to save.
"""

import gc
import json
import os
import signal
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from filelock import Timeout

from fedchoir.core.federation_spec import FederationSpec
from fedchoir.core.result import Event
from fedchoir.data.decoded import DECODED
from fedchoir.experiments.backend import ENDS, Status
from fedchoir.experiments.config import Experiment, Plan
from fedchoir.experiments.live_status import LiveStatus
from fedchoir.experiments.run import Observer, run
from fedchoir.experiments.run_memory import RunMemory
from fedchoir.experiments.scheduler import is_finished, lock_of, log_of
from fedchoir.experiments.sweep import Job
from fedchoir.experiments.tracking import make_trackers
from fedchoir.utils.errors import Interrupted, UsageError, WorkerError
from fedchoir.utils.subprocess_channel import parent_channel

KEPT = 2**29  # bytes of decoded data that the runs of this process share
Send = Callable[..., None]


def job_of(task: Mapping[str, Any]) -> Job:
    return Job(task["name"], task["label"], Experiment(**task["experiment"]), track=tuple(task["track"]))


class RoundReporter(Observer):
    """Reports the rounds of a run, and the memory that it has needed, to the scheduler."""

    def __init__(self, job: Job, send: Send) -> None:
        self._experiment, self._send = job.experiment, send
        self._memory = RunMemory()

    def began(self, plan: Plan, spec: FederationSpec, done: list[Event]) -> None:
        self._send("began", rounds=spec.rounds, done=len([event for event in done if event["round"] >= 0]))

    def round(self, event: Event) -> None:
        if event["round"] >= 0:
            memory = self._memory.peak(self._experiment)
            self._send("round", round=event["round"], intra=event["intra_avg"], inter=event["inter_avg"], memory=memory)


def run_job(job: Job, send: Send) -> None:
    """Execute one run, or the rest of it, unless it is finished or another process executes it. Its end is reported
    when no error is handled any more, which would keep alive what the run held."""
    send(**_executed(job, send))


def _executed(job: Job, send: Send) -> Status:
    """How the run ended."""
    try:
        with lock_of(job.out):
            finished = is_finished(job)
            if not finished:
                observers = [RoundReporter(job, send), LiveStatus(), *make_trackers(job.track)]
                run(job.experiment, resume=True, observers=observers)
        return {"event": "skipped" if finished else "finished"}
    except Interrupted as stop:
        return {"event": "stopped", "why": stop.saved}
    except Timeout:
        return {"event": "locked"}
    except UsageError as error:
        return {"event": "failed", "why": str(error)}
    except Exception as error:
        traceback.print_exc()
        if isinstance(error, WorkerError):
            facts = {"why": str(error), "signal": error.signal, "gpu_full": error.gpu_full}
        else:
            facts = {"why": f"{type(error).__name__}: {error}"}
        return {"event": "failed", "broken": True, **facts}


def free_memory() -> None:
    """Give back what a run held."""
    gc.collect()
    if torch.cuda.is_available():
        with suppress(RuntimeError):  # the GPU may have failed, and the run with it
            torch.cuda.empty_cache()


def redirect_output(job: Job) -> None:
    """Send everything that this process prints to the log of the run."""
    with log_of(job).open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)


def main() -> None:
    channel = parent_channel(signal.SIGUSR1)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    DECODED.limit = KEPT

    def send(event: str, **facts: Any) -> None:
        if event in ENDS:  # before the scheduler looks how much memory is free for the next run
            free_memory()
        channel.send([json.dumps({"event": event, **facts}).encode()])

    while True:  # until the scheduler ends this process
        job = job_of(json.loads(channel.receive()[0]))
        redirect_output(job)
        run_job(job, send)


if __name__ == "__main__":
    main()
