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

The runs share pretrained client models (``pretrained``, by default a folder beside the runs).

A run is called by its scenario, its label (a variant's, or else the method) and the settings of the grid.
"""

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
from fedchoir.methods import CONDENSED
from fedchoir.models.spec import split_models
from fedchoir.utils.errors import UsageError
from fedchoir.utils.io import read_toml
from fedchoir.utils.options import Options

LONG = 60  # characters of a folder's name
NOT_IN_LABEL = ("method", "scenario", "public", "models")
"""Fields of a grid that are not part of a row's label: a table has columns or headings for them."""


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
        machine = ("cache", "data_root", "device", "checkpoint_every", "pretrained")
        shown = {k: v for k, v in self.values.items() if k not in machine} | dict(self.settings)
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
    track: tuple[str, ...] = ()
    """Trackers that follow the run, as ``wandb``."""

    @property
    def out(self) -> Path:
        assert self.experiment.out is not None
        return self.experiment.out


def read_sweep(path: Path) -> SweepFile:
    """The sweep file at ``path``; one that is ``like`` another has that one's runs under its own title."""
    values = read_toml(path)
    try:
        file = SweepFile(**values)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    if file.like is None:
        return file
    if extra := sorted(set(values) - {"title", "like"}):
        raise UsageError(f"{path}: {extra[0]} is not possible beside like = {file.like!r}, which has the runs")
    runs = read_sweep(path.with_name(f"{file.like}.toml"))
    return runs.model_copy(update={"title": file.title, "like": file.like})


def name_of(path: Path) -> str:
    """The name of the folder for a sweep's runs: that of the file, or of its folder for ``results/NAME/sweep.toml``.

    >>> [name_of(Path(path)) for path in ("weights.toml", "results/digits/sweep.toml", "results/digits/open.toml")]
    ['weights', 'digits', 'digits']
    """
    return path.resolve().parent.name if path.stem in ("sweep", "open") else path.stem


def jobs_of(file: SweepFile, out: Path, overrides: Overrides | None = None, only: Sequence[str] = ()) -> list[Job]:
    """Every run of a sweep, or those that ``only`` names. All are checked, so that nothing starts if one is wrong."""
    overrides = overrides or Overrides()
    jobs: dict[str, Job] = {}
    seen: set[str] = set()
    labels: dict[str, None] = {}
    for name, label, values, published in _combinations(file, overrides):
        labels[label] = None
        names = (name, label, str(values.get("method")))
        if only and not any(word == n or fnmatchcase(n, word) for word in only for n in names):
            continue
        for seed in overrides.seeds or file.seeds:
            full = f"{name}-seed{seed}"
            try:
                experiment = Experiment(**{"pretrained": out / "pretrained", **values, "seed": seed, "out": out / full})
                make_plan(experiment)
            except UsageError as error:
                raise UsageError(f"{name}: {error}") from None
            key = experiment.model_dump_json(exclude={"out"})
            if key in seen:  # an override made two runs equal, such as --scenario where the grid has several
                continue
            seen.add(key)
            if full in jobs:
                raise UsageError(f"two different runs are called {full!r}: give the variants a label each")
            jobs[full] = Job(full, label, experiment, published)
    if not jobs:
        what = f"--only {' '.join(only)!r} fits no run; labels: {', '.join(labels)}"
        raise UsageError(what if only else "the sweep has no runs")
    return list(jobs.values())


def _combinations(file: SweepFile, overrides: Overrides) -> Iterator[tuple[str, str, dict[str, Any], tuple[str, ...]]]:
    """(name, label, values of an experiment, published rows) of every combination, without seeds."""
    if empty := [key for key, choices in file.grid.items() if not choices]:
        raise UsageError(f"grid: {empty[0]} has no values")
    for combination in product(*file.grid.values()):
        point = dict(zip(file.grid, combination, strict=True))
        fields = {k: v for k, v in point.items() if k in Experiment.model_fields}
        fields["settings"] = {k: v for k, v in point.items() if k not in fields}
        for variant in file.variant or [{}]:
            chosen = {k: v for k, v in variant.items() if k not in ("label", "published")}
            values = _merge(_merge(file.base, fields), chosen)
            if overrides.scenario not in (None, values.get("scenario")):
                values = _move(values, str(overrides.scenario))
            values = _merge(values, {**overrides.values, "settings": overrides.settings})
            shown = [f"{k}={v}" for k, v in point.items() if k not in NOT_IN_LABEL and k not in chosen]
            label = " ".join([str(variant.get("label") or values.get("method", "?")), *shown])
            keys = variant.get("published", ())
            published = tuple(" ".join([key, *shown]) for key in ([keys] if isinstance(keys, str) else keys))
            data = [Path(values.get("scenario", "digits-lite")).name]
            data += [str(values[k]) for k in ("public", "models") if k in file.grid and values.get(k)]
            yield slug(" ".join([*data, label])), label, values, published


def _merge(values: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    return {**values, **more, "settings": {**values.get("settings", {}), **more.get("settings", {})}}


def _move(values: dict[str, Any], scenario: str) -> dict[str, Any]:
    """The same run on other data: with that scenario's public set (unless the clients make it), private sizes, and
    models of the same kind."""
    made = values.get("public") == CONDENSED
    kept = {k: v for k, v in values.items() if k != "models" and (k != "public" or made)}
    models = values.get("models") or ()
    if len(split_models(models) if isinstance(models, str) else models) == 1:
        kept["models"] = (info(scenario).homogeneous_model,)
    settings = {k: v for k, v in values["settings"].items() if k != "private"}
    return {**kept, "scenario": scenario, "settings": settings}


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
    seeds = split_names(text)
    if not seeds or not all(seed.isdecimal() for seed in seeds) or text.strip() == "0":
        raise UsageError(f"--seeds {text!r} is not possible: it should be how many (3) or which (4,7)")
    return tuple(map(int, seeds)) if "," in text else tuple(range(int(seeds[0])))
