"""How many runs of a sweep this machine executes at once: a number, or as many as its cores and memory allow."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from fedchoir.experiments.config import Experiment
from fedchoir.experiments.sweep import Job
from fedchoir.utils.errors import UsageError
from fedchoir.utils.memory import free_host_memory, gpu_memory
from fedchoir.utils.threads import cores

JobCount = int | Literal["auto"]
"""The value of ``--jobs``."""
Memory = Mapping[str, int]
"""Bytes by place: ``host``, and each GPU by the name that NVIDIA gives it."""
HOST = "host"
RESERVE = 2**30  # bytes of each place that no run gets
AFTER_KILL = 1.5  # times as much is expected of a run after it had too little memory
GPU_GROWTH = 1.25  # times what runs that are not over took of a GPU: graphs that later rounds capture come on top
NOT_THE_KIND = {"seed", "out", "data_root", "cache", "pretrained", "checkpoint_every"}
"""Fields of an experiment that may differ between two runs of the same kind."""


def kind_of(experiment: Experiment) -> str:
    """Equal for runs that need about as much memory and time: they differ in the seed, or in where their files are."""
    return json.dumps(experiment.model_dump(mode="json", exclude=NOT_THE_KIND), sort_keys=True)


class Places:
    """So many runs at once, whatever they need. A run for which memory was not enough waits until another one has
    ended: beside the same ones it would fail again."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.running: dict[Path, Job] = {}  # by folder: runs of two sweeps may have one name
        self._held: set[Path] = set()

    def admits(self, job: Job) -> bool:
        """Whether one more run may start now."""
        return not self.running or (len(self.running) < self.places and job.out not in self._held)

    def began(self, job: Job) -> None:
        self.running[job.out] = job
        self._held.discard(job.out)

    def measured(self, job: Job, peak: Memory) -> None:
        """A run has needed so much until now."""

    def exceeded(self, job: Job, gpu: bool = False) -> None:
        """A run ends because memory was used up: of its GPUs, or of the host, whose system then kills its process."""
        self._held.add(job.out)

    def ended(self, job: Job, finished: bool = False) -> None:
        del self.running[job.out]
        if job.out not in self._held:
            self._held.clear()


class Placement(Places):
    """One more run at a time, if a core is left and what the run is expected to need is free.

    A run is expected to need what the runs of its kind needed at most, or else the most that any run needed. Until a
    run of its kind has finished, that may not be all, so a little more of a GPU is expected, and much more after memory
    was not enough for one. Nothing is known at first, so the first run is alone until it reports its memory. What
    running ones are still expected to take counts as taken: all that they need, until they report how much of it they
    have.
    """

    def __init__(self, places: int, free: Callable[[str], int], reserve: int = RESERVE) -> None:
        """``free`` reads how many bytes of a place are free now."""
        super().__init__(places)
        self._free, self._reserve = free, reserve
        self._peaks: dict[str, dict[str, int]] = {}
        self._whole: set[str] = set()  # kinds of which a run has finished, so that its peak is that of a whole run
        self._exceeded: set[tuple[str, bool]] = set()  # kinds, with whether it was a GPU's memory
        self._taken: dict[Path, Memory] = {}

    def admits(self, job: Job) -> bool:
        if not self.running:
            return True
        if not super().admits(job) or not self._peaks:
            return False
        return all(
            needed + self._expected_growth(place) + self._reserve <= self._free(place)
            for place, needed in self.need(job).items()
        )

    def need(self, job: Job) -> Memory:
        """What a run is expected to need; nothing, if no run was measured."""
        kind = kind_of(job.experiment)
        most = self._peaks.get(kind, {})
        if not most:
            for peak in self._peaks.values():
                most = _larger(most, peak)
        return {place: int(bytes_ * self._factor(kind, gpu=place != HOST)) for place, bytes_ in most.items()}

    def _factor(self, kind: str, gpu: bool) -> float:
        growth = GPU_GROWTH if gpu and kind not in self._whole else 1.0
        return growth * AFTER_KILL if (kind, gpu) in self._exceeded else growth

    def measured(self, job: Job, peak: Memory) -> None:
        self._taken[job.out] = peak
        kind = kind_of(job.experiment)
        self._peaks[kind] = _larger(self._peaks.get(kind, {}), peak)

    def exceeded(self, job: Job, gpu: bool = False) -> None:
        super().exceeded(job, gpu)
        self._exceeded.add((kind_of(job.experiment), gpu))

    def ended(self, job: Job, finished: bool = False) -> None:
        super().ended(job, finished)
        if self._taken.pop(job.out, None) and finished:
            kind = kind_of(job.experiment)
            self._whole.add(kind)
            self._exceeded -= {(kind, False), (kind, True)}

    def _expected_growth(self, place: str) -> int:
        return sum(
            max(0, self.need(job).get(place, 0) - self._taken.get(job.out, {}).get(place, 0))
            for job in self.running.values()
        )


def _larger(one: Memory, two: Memory) -> dict[str, int]:
    return {place: max(one.get(place, 0), two.get(place, 0)) for place in {**one, **two}}


def parse_jobs(text: str) -> JobCount:
    """The value of ``--jobs``.

    >>> parse_jobs("2"), parse_jobs("auto")
    (2, 'auto')
    """
    if text == "auto":
        return "auto"
    if not text.isdecimal() or not int(text):
        raise UsageError(f"--jobs {text!r} is not possible: it should be how many runs at once, or auto")
    return int(text)


def make_places(jobs: JobCount, runs: int) -> Places:
    """The places that ``--jobs`` asks for; no more than there are runs."""
    if jobs == "auto":
        return Placement(max(1, min(cores(), runs)), free_memory)
    return Places(max(1, min(jobs, runs)))


def free_memory(place: str) -> int:
    """Bytes that are free now on the host or on a GPU; 0, so that runs come one at a time, where it is not known."""
    return free_host_memory() if place == HOST else gpu_memory(place)[0]
