"""What the papers print, found by what a run is: its method, scenario, public set, kind of models and variant.

The numbers are in ``published.toml``; which settings a row of a table stands for is in the sweep file that runs the
table, ``experiments/<paper>/<table>.toml``, so that it is said once.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from statistics import mean
from typing import Any

from fedchoir.core.result import Result
from fedchoir.core.settings import Settings
from fedchoir.data.options import DataOptions
from fedchoir.data.registry import SCENARIOS
from fedchoir.experiments import config as experiments
from fedchoir.experiments.config import Plan
from fedchoir.experiments.reproduce import find, runs_of, tables
from fedchoir.experiments.sweep import Job

DATA = {field.name for field in fields(DataOptions)} | {"fraction"}
ALWAYS = DATA - {"image_size", "partition_file"} | {"public_augment"}
"""Settings of all methods that must be the paper's for its number to be shown; of the others a note tells."""
NEVER = {"evaluate_every", "clients"}
"""Settings that change nothing about a number (how many clients there are is looked at by itself)."""


@dataclass(frozen=True)
class Printed:
    """One number of one table: ``value`` is the average, ``clients`` what it is the average of, where that is printed.

    ``metric`` is ``intra``, ``inter`` or ``rounds`` (to reach ``target``); the accuracy of one global model is
    ``intra``. ``value`` is the mean of the columns where the paper prints no average.
    """

    table: str
    label: str
    scenario: str
    public: str | None
    models: tuple[str, ...] | None
    metric: str
    value: float
    sd: float | None = None
    clients: tuple[float, ...] = ()
    target: float | None = None
    doubt: str = ""


@dataclass(frozen=True)
class Match:
    """What is printed for a run, by metric. ``notes`` say in what the run is not the paper's; with ``other_data``
    the numbers are for another scenario and there is nothing to subtract."""

    printed: Mapping[str, Printed] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    other_data: bool = False

    def __bool__(self) -> bool:
        return bool(self.printed)


@cache
def printed() -> tuple[Printed, ...]:
    """Every number of ``published.toml``."""
    content = tomllib.loads((files("fedchoir.experiments") / "published.toml").read_text(encoding="utf-8"))
    return tuple(number for block in content["table"] for number in _numbers(block))


def _numbers(block: Mapping[str, Any]) -> list[Printed]:
    columns: list[str] = block["columns"]
    shared: dict[str, Any] = {
        "table": block["of"],
        "scenario": block["scenario"],
        "public": block.get("public"),
        "models": tuple(block["models"].split(",")) if "models" in block else None,
        "metric": {"accuracy": "intra"}.get(block["metric"], block["metric"]),
    }
    made = []
    for label, values in block["rows"].items():
        doubt = block.get("doubts", {}).get(label, "")
        if any("=" in column for column in columns):
            targets = iter(block.get("target", ()))
            for i, column in enumerate(columns):
                if "=" in column:
                    more: dict[str, Any] = {"sd": _after(columns, values, i), "target": next(targets, None)}
                    made.append(Printed(**shared, label=f"{label} {column}", value=values[i], **more, doubt=doubt))
            continue
        clients = tuple(v for c, v in zip(columns, values, strict=True) if c not in ("avg", "±", "best"))
        value = values[columns.index("avg")] if "avg" in columns else mean(clients)
        sd = _after(columns, values, columns.index("avg")) if "±" in columns else None
        more = {"sd": sd, "target": block.get("target")}
        made.append(Printed(**shared, label=label, value=value, clients=clients, **more, doubt=doubt))
    return made


def _after(columns: list[str], values: list[float], i: int) -> float | None:
    return values[i + 1] if columns[i + 1 : i + 2] == ["±"] else None


def match(result: Result, *, table: str | None = None, label: str | None = None) -> Match:
    """What papers print for a run; the nearest setting where several tables have it, the first table on a tie. A metric
    that is printed only for other options than the nearest table's is left out: it belongs to another run.

    ``table`` and ``label`` are those of a sweep. Who calls a run what the paper calls its row holds it against that
    row, so its method may have other options than the paper's, which the notes tell. And where the run is on other
    data than the table's, as after ``reproduce --scenario``, they say which of its numbers to show for orientation.
    """
    best: dict[str, tuple[Printed, Mapping[str, str]]] = {}
    for number, job in _jobs():
        differences = _differences(result, number.table, job, named=label == number.label)
        if differences is None:
            continue
        known = best.get(number.metric)
        if known is None or len(differences) < len(known[1]):
            best[number.metric] = (number, differences)
    if best:
        options = {metric: len(told.keys() - {"rounds"}) for metric, (_, told) in best.items()}
        found = {metric: best[metric] for metric, count in options.items() if count == min(options.values())}
        notes = dict.fromkeys(note for _, told in found.values() for note in told.values())
        return Match({metric: number for metric, (number, _) in found.items()}, tuple(notes))
    numbers = _jobs_of(table) if table in tables() else []
    if all(n.scenario != result.scenario for n, _ in numbers):
        labelled = [n for n, job in numbers if job.label == label]
        return Match({n.metric: n for n in reversed(labelled)}, other_data=bool(labelled))
    return Match()


@cache
def _jobs() -> tuple[tuple[Printed, Job], ...]:
    """Every printed number with the run that stands for it; methods that are not there are left out."""
    return tuple((n, job) for n in printed() if (job := _job(n)) is not None)


def _jobs_of(table: str | None) -> list[tuple[Printed, Job]]:
    """The numbers whose runs are those of a table, printed there or in one that is like it."""
    assert table is not None
    return [(n, job) for n, job in _jobs() if find(n.table) == find(table)]


def _job(number: Printed) -> Job | None:
    for job in runs_of(number.table):
        told = job.experiment
        same_models = number.models is None or told.models is None or told.models == number.models
        same_public = number.public is None or told.public in (None, number.public)
        if (job.label, told.scenario) == (number.label, number.scenario) and same_models and same_public:
            return job
    return None


def _differences(result: Result, table: str, job: Job, named: bool = False) -> dict[str, str] | None:
    """In what a run is not the paper's, each by its name with its words; None where it is another setting altogether:
    other data, or, but for a run that is ``named`` like the paper's row, other options of the method's own.

    What a profile settles may be as in the run's profile or as in the table's (batches: 128 in `fixed`, 256 in print).
    The words tell of it all the same: option by option, or of a profile that is neither the default nor the table's by
    its name.
    """
    told = job.experiment
    if (result.method, result.scenario) != (told.method, told.scenario):
        return None
    plan = _planned(table, job.name, result.profile)
    if result.public != plan.public:
        return None
    models = tuple(client["model"] for client in result.clients)
    wanted = tuple(plan.models[k % len(plan.models)] for k in range(len(models)))
    if (len(set(models)) == 1) != (len(set(wanted)) == 1):
        return None
    there = plan.params.model_dump(mode="json")
    papers = _planned(table, job.name, told.profile).params.model_dump(mode="json")
    defaults = type(plan.params)().model_dump(mode="json")  # an option that is younger than the run
    unused = {k for k in there if k.startswith("public_") and not result.public}
    here = {k: result.settings.get(k, defaults[k]) for k in there if k not in NEVER | unused}
    differing = [k for k in here if here[k] not in (there[k], papers[k])]
    own = set() if named else set(type(plan.params).model_fields) - set(Settings.model_fields)
    if any(k in ALWAYS or k in own for k in differing):
        return None
    if len(models) != (there["clients"] or len(SCENARIOS[told.scenario].domains)):
        return None
    facts: dict[str, tuple[object, object]] = {}
    if result.rounds != plan.rounds:
        facts["rounds"] = result.rounds, plan.rounds
    if models != wanted:
        facts["models"] = ", ".join(dict.fromkeys(models)), ", ".join(plan.models)
    if result.profile in ("fixed", told.profile):
        differing = [k for k in here if here[k] != papers[k]]
    else:
        facts["profile"] = result.profile, told.profile
    facts |= {k: (here[k], papers[k]) for k in differing}
    return {name: f"{name} {ours} ({theirs})" for name, (ours, theirs) in facts.items()}


@cache
def _planned(table: str, name: str, profile: str) -> Plan:
    """A table's run with nothing left open, under its own profile or that of the run that it is held against."""
    job = next(job for job in runs_of(table) if job.name == name)
    return experiments.plan(job.experiment.model_copy(update={"profile": profile}))
