"""The order in which a sweep starts its runs with ``--jobs auto``, so that no long run is left over at the end."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fedchoir.experiments.config import read_experiment
from fedchoir.experiments.placement import kind_of
from fedchoir.experiments.sweep import Job
from fedchoir.utils.errors import UsageError


class LongestFirst:
    """Runs whose kind has finished in a folder of the sweep, the longest first. Those of unknown time come before them,
    in the order of the file: they may be longer."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._kinds: dict[Path, str] = {}
        self._seen: set[Path] = set()

    def __call__(self, jobs: Sequence[Job]) -> list[Job]:
        for folder in {job.out.parent for job in jobs}:
            self._read(folder)
        return sorted(jobs, key=lambda job: -self._seconds.get(self._kind(job), float("inf")))

    def _kind(self, job: Job) -> str:
        """Kept, because the order is asked for after every report, and a sweep may have hundreds of runs."""
        if job.out not in self._kinds:
            self._kinds[job.out] = kind_of(job.experiment)
        return self._kinds[job.out]

    def _read(self, folder: Path) -> None:
        """The times of runs that have finished since the last look."""
        for path in set(folder.glob("*/result.json")) - self._seen:
            self._seen.add(path)
            with suppress(UsageError, OSError, ValueError, KeyError, TypeError):  # a run of another version
                seconds = json.loads(path.read_text())["seconds"]["total"]
                kind = kind_of(read_experiment(path.with_name("experiment.toml")))
                self._seconds[kind] = max(seconds, self._seconds.get(kind, 0.0))
