"""The rows of a queue and their runs. A run that several rows have is run once and kept in the section of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from fedchoir.experiments.config import Experiment, read_experiment
from fedchoir.experiments.run import MAY_CHANGE
from fedchoir.experiments.scheduler import is_finished
from fedchoir.experiments.sweep import Job, Overrides, jobs_of, read_sweep
from fedchoir.utils.errors import UsageError
from fedchoir.utils.io import read_toml
from fedchoir.utils.options import Options


class Row(Options):
    """One sweep of the queue."""

    sweep: Path = Field(description="the sweep file")
    section: str = Field(description="folder of results/ that its finished runs go to", pattern=r"^\w[\w.+-]*$")
    why: str = Field(description="what the runs decide")
    data: tuple[str, ...] = Field((), description="files or folders of the data root that it needs")
    only: tuple[str, ...] = Field((), description="labels, as with fedchoir sweep --only; default: all")
    seeds: tuple[int, ...] | None = Field(None, description="default: those of the sweep file")
    minutes: float = Field(10.0, gt=0, description="of one run, for the plan")
    keep: bool = Field(False, description="the last checkpoints of its finished runs travel, too, for figures")


class Queue(Options):
    """The content of the file."""

    values: dict[str, Any] = Field(default_factory=dict, description="fields of an experiment that all runs share")
    row: list[Row] = Field(min_length=1, description="in order of value")


class Place(NamedTuple):
    """Where a run is kept: the section of a row, with the name and label that it has there."""

    row: Row
    job: Job


@dataclass(frozen=True)
class Task:
    """One run of the queue: what is executed, and every place that it is kept in, that of the first row first."""

    job: Job
    places: tuple[Place, ...]

    @property
    def finished(self) -> bool:
        return is_finished(self.job)

    @property
    def row(self) -> Row:
        """The first row that has it."""
        return self.places[0].row


def read_queue(path: Path, first: int | None = None) -> Queue:
    """The queue, or its first rows."""
    try:
        values = read_toml(path)
        return Queue(**{**values, "row": values.get("row", [])[:first]})
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def tasks_of(queue: Queue, state: Path, **machine: Any) -> list[Task]:
    """Every run of the queue in its order, each once. A run that the state holds stays in its folder, whichever row it
    was begun for, so that it is not run again when rows are removed or their order changes."""
    places: dict[str, list[Place]] = {}
    owners: dict[Path, tuple[str, str]] = {}  # of a place: the experiment, and the row in words
    values = {"pretrained": state / "pretrained", **queue.values, **machine}
    for number, row in enumerate(queue.row, start=1):
        overrides = Overrides(seeds=row.seeds, values=values)
        for job in jobs_of(read_sweep(row.sweep), state / row.section, overrides, row.only):
            key, name = _key(job.experiment), f"row {number} ({row.sweep})"
            other_key, other = owners.setdefault(job.out, (key, name))
            if other_key != key:
                raise UsageError(
                    f"{other} and {name} have two different runs that are both called {row.section}/{job.name}: "
                    "give one row another section, or its variant another label"
                )
            if all(job.out != place.job.out for place in places.setdefault(key, [])):
                places[key].append(Place(row, job))
    begun = _begun(state)
    return [Task(_moved(own[0].job, begun.get(key)), tuple(own)) for key, own in places.items()]


def _key(experiment: Experiment) -> str:
    """Equal for two experiments of which one may continue the run of the other."""
    return json.dumps(experiment.model_dump(mode="json", exclude=MAY_CHANGE), sort_keys=True)


def _begun(state: Path) -> dict[str, Path]:
    """The folders of the state that hold a run, by what it is; of two with the same run the one that is further."""
    found: dict[str, Path] = {}
    for path in sorted(state.glob("[!.]*/*/experiment.toml")):
        with suppress(UsageError):  # of an older version
            key, folder = _key(read_experiment(path)), path.parent
            if key not in found or progress_of(folder) > progress_of(found[key]):
                found[key] = folder
    return found


def _moved(job: Job, folder: Path | None) -> Job:
    if folder is None or folder == job.out:
        return job
    return replace(job, name=folder.name, experiment=job.experiment.model_copy(update={"out": folder}))


class Progress(NamedTuple):
    """How far a run is; of two states of one run the larger one is worth more."""

    finished: bool
    saved: int  # rounds in its checkpoint, which it can continue from
    rounds: int

    def __str__(self) -> str:
        return "finished" if self.finished else f"{self.rounds} rounds, {self.saved} of them in a checkpoint"


def progress(read: Callable[[str], bytes | None]) -> Progress:
    """Of the run whose files ``read`` returns; None for a file that it does not have."""
    saved = 0
    with suppress(ValueError, KeyError, TypeError, OverflowError, RecursionError):
        saved = int(json.loads(read("checkpoint/latest.json") or b"")["round"]) + 1
    return Progress(read("result.json") is not None, saved, (read("events.jsonl") or b"").count(b"\n"))


def progress_of(folder: Path) -> Progress:
    return progress(lambda name: (folder / name).read_bytes() if (folder / name).is_file() else None)


def plan(rows: Sequence[Row], tasks: Sequence[Task]) -> str:
    """A line for every row: runs, finished ones, minutes left; runs of a row above cost no time again."""
    lines, left = [], 0.0
    for row in rows:
        own = [task for task in tasks if any(place.row is row for place in task.places)]
        done = sum(task.finished for task in own)
        shared = sum(task.row is not row for task in own)
        minutes = sum(row.minutes for task in own if task.row is row and not task.finished)
        note = f", {shared} of them in rows above" if shared else ""
        lines.append(f"{row.section}: {done} of {len(own)} runs{note}, {minutes:.0f} min left · {row.why}")
        left += minutes
    return "\n".join([*lines, f"in all {left:.0f} minutes of one run at a time"])
