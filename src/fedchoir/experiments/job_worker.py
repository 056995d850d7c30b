"""``python -m fedchoir.experiments.job_worker``: a process of a sweep. Jobs come as lines of JSON on standard input, and what there is
to tell of them goes out as lines of JSON; whatever a library prints goes to the log of the run."""

from __future__ import annotations

import gc
import json
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import torch
from filelock import Timeout

from fedchoir.experiments import config as experiments
from fedchoir.experiments.live_status import LiveStatus
from fedchoir.experiments.run import run
from fedchoir.experiments.scheduler import is_finished, lock_of, log_of
from fedchoir.experiments.sweep import Job
from fedchoir.utils.errors import UsageError, WorkerError

Say = Callable[..., None]


class _Teller:
    """An `Observer` that tells the sweep about every round."""

    def __init__(self, say: Say) -> None:
        self._say = say

    def began(self, plan: Any, task: Any, done: list[Any]) -> None:
        self._say("began", rounds=task.rounds, done=len([e for e in done if e["round"] >= 0]))

    def client(self, name: str, phase: str) -> None:
        pass

    def round(self, event: dict[str, Any]) -> None:
        if event["round"] >= 0:
            self._say("round", round=event["round"], intra=event["intra_avg"], inter=event["inter_avg"])

    def ended(self) -> None:
        pass


def main() -> None:
    """Play what comes, until something goes wrong that should not: then leave, for who knows what is left behind."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    voice = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(event: str, **facts: Any) -> None:
        voice.write(json.dumps({"event": event, **facts}) + "\n")
        voice.flush()

    inbox: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_receive, args=(inbox,), daemon=True).start()
    while _play(json.loads(inbox.get()), say):
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _receive(inbox: queue.Queue[str]) -> None:
    """When the sweep is gone, even killed, our standard input ends: do not go on unseen."""
    for line in sys.stdin:
        inbox.put(line)
    os._exit(1)


def _play(given: dict[str, Any], say: Say) -> bool:
    """Play one run, or the rest of it; whether this process may go on after it."""
    job = Job(given["name"], given["label"], experiments.make(given["experiment"]))
    with log_of(job).open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        with lock_of(job):
            there = is_finished(job)
            if not there:
                run(job.experiment, resume=True, observers=[_Teller(say), LiveStatus()])
        say("there" if there else "finished")
    except Timeout:  # another sweep took the run since ours looked
        say("busy")
    except UsageError as error:
        say("failed", why=str(error))
    except Exception as error:
        traceback.print_exc()
        known = isinstance(error, WorkerError)
        say("failed", why=str(error) if known else f"{type(error).__name__}: {error}", leaving=True)
        return False
    return True


if __name__ == "__main__":
    main()
