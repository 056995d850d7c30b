"""Worker processes of a sweep on this machine."""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import wait

from fedchoir.experiments.backend import ENDS, KILL_AFTER, Status, task_of
from fedchoir.experiments.placement import Places
from fedchoir.experiments.sweep import Job
from fedchoir.utils.errors import WorkerError
from fedchoir.utils.stop_signals import GRACE, grace_seconds
from fedchoir.utils.subprocess_channel import ChildProcess
from fedchoir.utils.threads import threads_for

WORKER = "fedchoir.experiments.sweep_worker"


class LocalProcesses:
    """Worker processes on this machine that share its cores. One in which a run failed is not used again."""

    def __init__(self, places: Places, grace: float | None = None) -> None:
        """``grace``: seconds that runs have to end their round (default: see `fedchoir.utils.stop_signals`)."""
        self.stopping = False
        self._kill_at: float | None = None  # what still runs then
        self._places = places
        self._grace = grace_seconds() if grace is None else grace
        self._idle: list[ChildProcess] = []
        self._running: dict[ChildProcess, Job] = {}
        self._shared: set[ChildProcess] = set()  # whose run has not been alone all the time

    def has_room(self, job: Job) -> bool:
        if self.stopping:
            return False
        if self._places.admits(job):
            return True
        while self._idle:  # they hold memory that the run may need
            self._idle.pop().close()
        return False

    def start(self, job: Job) -> None:
        threads = str(threads_for(self._places.places))
        environment = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, GRACE: str(self._grace)}
        self._discard_dead()
        child = self._idle.pop() if self._idle else ChildProcess.spawn("its process", WORKER, environment)
        self._running[child] = job
        if len(self._running) > 1:
            self._shared.update(self._running)
        self._places.began(job)
        with suppress(WorkerError):  # poll reports a process that has died
            child.send([json.dumps(task_of(job)).encode()])

    def _discard_dead(self) -> None:
        """The system may have killed an idle process. No run starts in it, for which that would count as a death."""
        for child in wait(self._idle, 0):  # type: ignore[arg-type]
            assert isinstance(child, ChildProcess)  # an idle one has nothing to say: its channel was closed
            self._idle.remove(child)
            child.close()

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
                status = {"event": "failed", "why": str(error), "broken": True, "signal": error.signal}
                if self.stopping:  # a run that has not begun its rounds has nothing to save
                    status |= {"event": "stopped", "why": "it did not stop in time" if self._is_late() else ""}
            if status["event"] in ENDS:
                self._release(child, status)
            elif "memory" in status:
                self._places.measured(job, status["memory"])
            yield job, status

    def _release(self, child: ChildProcess, status: Status) -> None:
        """Its run is over. A signal that ended its process, or one of the engine's, makes it ``killed``, and so does
        a GPU that other runs have filled."""
        job, shared = self._running.pop(child), child in self._shared
        self._shared.discard(child)
        if status.get("broken"):
            child.close()
        else:
            self._idle.append(child)
        gpu_full = bool(status.get("gpu_full") and shared)
        if status["event"] == "failed" and (gpu_full or status.get("signal")):
            status["event"] = "killed"
            if gpu_full or status["signal"] == signal.SIGKILL:
                self._places.exceeded(job, gpu=gpu_full)
        self._places.ended(job, finished=status["event"] == "finished")

    def stop(self) -> None:
        self.stopping = True

    def _ask_to_stop(self) -> None:
        """Once; what does not stop is killed."""
        if self._kill_at is None:
            self._kill_at = time.monotonic() + KILL_AFTER * self._grace
            for child in self._running:
                with suppress(ProcessLookupError):  # poll reports a process that has died
                    child.ask_to_stop()
        elif self._is_late():
            for child in self._running:
                child.kill()  # poll reports it

    def _is_late(self) -> bool:
        return self._kill_at is not None and time.monotonic() > self._kill_at

    def close(self) -> None:
        for child in (*self._idle, *self._running):
            child.close()
