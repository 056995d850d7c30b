"""A sweep file: base values, a grid, variants with labels and seeds become a list of runs.

    title = "What weight of FISL is best?"
    seeds = [0, 1, 2]
    [base]
    method = "fccl+"
    scenario = "digits-lite"
    [grid]                       # every combination; a name that is no field of an experiment is a setting
    omega = [1, 2, 3]
    [[variant]]                  # each with every point of the grid
    label = "FCCM+FISL"
    published = "fccl+/table14:FCCM+FISL"    # optional: the row of a published table; the grid adds omega=1 and so on
    settings = { regulariser = "dual" }

A run is called by its scenario, its label (a variant's, or else the method) and the settings of the grid.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import Field

from fedchoir.data.registry import info
from fedchoir.experiments.config import Experiment, make_plan, split_names
from fedchoir.utils.errors import UsageError
from fedchoir.utils.io import read_toml
from fedchoir.utils.options import Options

LONG = 60  # characters of a folder's name
NOT_IN_LABEL = ("method", "scenario", "public", "models")
"""Fields of a grid that a table shows elsewhere than in the label of a row."""


class SweepFile(Options):
    """The content of the TOML file."""

    title: str = Field("", description="title of the table")
    like: str | None = Field(None, description="sweep file of this folder, without .toml, whose runs this one shows")
    seeds: tuple[int, ...] = Field((0,), min_length=1, description="every run is executed with each of them")
    base: dict[str, Any] = Field(default_factory=dict, description="fields of an experiment that all runs share")
    grid: dict[str, list[Any]] = Field(default_factory=dict, description="lists of values; every combination is run")
    variant: list[dict[str, Any]] = Field(default_factory=list, description="fields of an experiment with a label")


@dataclass(frozen=True)
class Overrides:
    """What the command line changes in a sweep file."""

    scenario: str | None = None
    seeds: tuple[int, ...] | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    """Fields of an experiment other than scenario, seed, out and settings."""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tag(self) -> str:
        """A suffix for the folder, so that a quick try does not lie in the folder of the real thing."""
        shown = {k: v for k, v in self.values.items() if k not in ("data_root", "device")} | dict(self.settings)
        scenario = () if self.scenario is None else (Path(self.scenario).name,)
        tag = "".join(f"-{slug(part)}" for part in (*scenario, *(f"{k}={v}" for k, v in shown.items())))
        return tag if len(tag) <= LONG else f"{tag[:LONG]}-{hashlib.sha256(tag.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Job:
    """One run of a sweep; ``experiment.out`` is its own folder."""

    name: str
    label: str
    experiment: Experiment
    published: tuple[str, ...] = ()
    """The published rows that the run belongs to, as ``fccl+/table8:fccl+``."""

    @property
    def out(self) -> Path:
        assert self.experiment.out is not None
        return self.experiment.out


def read_sweep(path: Path) -> SweepFile:
    """The sweep file at ``path``; one that is `like` another has that one's runs under its own title."""
    values = read_toml(path)
    try:
        file = SweepFile(**values)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    if file.like is None:
        return file
    if extra := sorted(set(values) - {"title", "like"}):
        raise UsageError(f"{path}: {extra[0]} is not possible beside like = {file.like!r}, which has the runs")
    return read_sweep(path.with_name(f"{file.like}.toml")).model_copy(update={"title": file.title})


def home_of(path: Path) -> Path:
    """The file that has the runs of a sweep file, to find their folder: itself, or the one it is like."""
    like = read_toml(path).get("like")
    return path if like is None else path.with_name(f"{like}.toml")


def name_of(path: Path) -> str:
    """What the folder of a sweep's runs is called: the file's name, or that of its folder where the file is the only
    one of its kind there, as under ``results/``. Rows of ``open.toml`` go where those of ``sweep.toml`` are.

    >>> [name_of(Path(path)) for path in ("weights.toml", "results/digits/sweep.toml", "results/digits/open.toml")]
    ['weights', 'digits', 'digits']
    """
    return path.resolve().parent.name if path.stem in ("sweep", "open") else path.stem


def jobs_of(file: SweepFile, out: Path, overrides: Overrides | None = None, only: Sequence[str] = ()) -> list[Job]:
    """Every run of a sweep, checked: nothing starts if one of them is not possible."""
    overrides = overrides or Overrides()
    made: dict[str, Job] = {}
    seen: set[str] = set()
    for name, label, values, published in _points(file, overrides):
        if only and not any(_fits(word, name, label, str(values.get("method"))) for word in only):
            continue
        for seed in overrides.seeds or file.seeds:
            experiment = _experiment(name, {**values, "seed": seed, "out": out / f"{name}-seed{seed}"})
            key = experiment.model_dump_json(exclude={"out"})
            if key in seen:  # an override made two runs alike, such as --scenario where the grid has several
                continue
            seen.add(key)
            if (full := f"{name}-seed{seed}") in made:
                raise UsageError(f"two different runs are called {full!r}: give the variants a label each")
            made[full] = Job(full, label, experiment, published)
    if not made:
        names = ", ".join(dict.fromkeys(label for _, label, _, _ in _points(file, overrides)))
        raise UsageError(f"--only {' '.join(only)!r} fits no run; labels: {names}" if only else "the sweep has no runs")
    return list(made.values())


def _fits(word: str, *names: str) -> bool:
    """Whether a word of ``--only``, with or without ``*``, is one of these names."""
    return any(word == name or fnmatchcase(name, word) for name in names)


def _points(file: SweepFile, overrides: Overrides) -> Iterator[tuple[str, str, dict[str, Any], tuple[str, ...]]]:
    """(name, label, values of an experiment, keys of published rows) of every combination, without seeds."""
    for key, choices in file.grid.items():
        if not choices:
            raise UsageError(f"grid: {key} has no values")
    for combination in product(*file.grid.values()):
        point = dict(zip(file.grid, combination, strict=True))
        for variant in file.variant or [{}]:
            chosen = {k: v for k, v in variant.items() if k not in ("label", "published")}
            values = _override(_merge(_merge(file.base, _nested(point)), chosen), overrides)
            shown = [f"{k}={v}" for k, v in point.items() if k not in NOT_IN_LABEL and k not in chosen]
            label = " ".join([str(variant.get("label") or values.get("method", "?")), *shown])
            keys = variant.get("published", ())
            published = tuple(" ".join([key, *shown]) for key in ([keys] if isinstance(keys, str) else keys))
            where = [Path(values.get("scenario", "digits-lite")).name]
            where += [str(values[k]) for k in ("public", "models") if k in file.grid and values.get(k)]
            yield slug(" ".join([*where, label])), label, values, published


def _nested(point: Mapping[str, Any]) -> dict[str, Any]:
    """A point of the grid as values of an experiment: what is no field of one is a setting."""
    fields = {k: v for k, v in point.items() if k in Experiment.model_fields}
    return {**fields, "settings": {k: v for k, v in point.items() if k not in fields}}


def _merge(values: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    return {**values, **more, "settings": {**values.get("settings", {}), **more.get("settings", {})}}


def _override(values: dict[str, Any], overrides: Overrides) -> dict[str, Any]:
    if overrides.scenario is not None and overrides.scenario != values.get("scenario"):
        values = _move(values, overrides.scenario)
    return _merge(values, {**overrides.values, "settings": overrides.settings})


def _move(values: dict[str, Any], scenario: str) -> dict[str, Any]:
    """The same run on other data: with that scenario's public set, private sizes, and models of the same kind."""
    kept = {k: v for k, v in values.items() if k not in ("public", "models", "settings")}
    settings = {k: v for k, v in values["settings"].items() if k != "private"}
    if len(split_names(values.get("models") or ())) == 1:
        kept["models"] = (info(scenario).homogeneous_model,)
    return {**kept, "scenario": scenario, "settings": settings}


def _experiment(name: str, values: Mapping[str, Any]) -> Experiment:
    try:
        experiment = Experiment(**values)
        make_plan(experiment)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None
    return experiment


def slug(text: str) -> str:
    """A name for a folder.

    >>> slug("digits FCCM+FISL omega=1")
    'digits-FCCM+FISL-omega=1'
    """
    return re.sub(r"[^A-Za-z0-9+=._]+", "-", text).strip("-.")


def parse_seeds(text: str) -> tuple[int, ...]:
    """``3`` is the seeds 0, 1, 2; ``4,7`` is 4 and 7.

    >>> parse_seeds("3"), parse_seeds("4,7"), parse_seeds("5,")
    ((0, 1, 2), (4, 7), (5,))
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts) or text.strip() == "0":
        raise UsageError(f"--seeds {text!r} is not possible: it should be how many (3) or which (4,7)")
    return tuple(map(int, parts)) if "," in text else tuple(range(int(parts[0])))
