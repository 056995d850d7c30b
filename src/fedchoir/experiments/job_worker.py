"""``python -m fedchoir.experiments.job_worker``: a process that executes runs of a sweep, one after the other.

It reports to the scheduler in JSON messages. Everything that a run prints goes to the log of the run.
"""

from __future__ import annotations

import gc
import json
import os
import traceback
from collections.abc import Callable
from typing import Any

import torch
from filelock import Timeout

from fedchoir.core.federation_spec import FederationSpec
from fedchoir.core.result import Event
from fedchoir.experiments.config import Experiment, Plan
from fedchoir.experiments.live_status import LiveStatus
from fedchoir.experiments.run import Observer, run
from fedchoir.experiments.scheduler import is_finished, lock_of, log_of
from fedchoir.experiments.sweep import Job
from fedchoir.utils.errors import UsageError, WorkerError
from fedchoir.utils.subprocess_channel import parent_channel

Send = Callable[..., None]


class RoundReporter(Observer):
    """An `Observer` that reports the rounds of a run to the scheduler."""

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
                run(job.experiment, resume=True, observers=[RoundReporter(send), LiveStatus()])
        send("skipped" if finished else "finished")
    except Timeout:
        send("locked")
    except UsageError as error:
        send("failed", why=str(error))
    except Exception as error:
        traceback.print_exc()
        why = str(error) if isinstance(error, WorkerError) else f"{type(error).__name__}: {error}"
        send("failed", why=why, broken=True)


def main() -> None:
    channel = parent_channel()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

    def send(event: str, **facts: Any) -> None:
        channel.send([json.dumps({"event": event, **facts}).encode()])

    while True:  # until the scheduler ends this process
        task = json.loads(channel.receive()[0])
        job = Job(task["name"], task["label"], Experiment(**task["experiment"]))
        with log_of(job).open("a") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        run_job(job, send)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
