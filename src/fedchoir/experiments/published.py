"""The numbers that papers print, found by the key of their row.

A row of a sweep file names the published row that belongs to it: ``published = "fccl+/table8:fccl+"`` is the row
``fccl+`` of Table 8, and of tables that are printed for the same runs (``like`` in ``experiments/``). Runs of
``fedchoir reproduce`` have the key of their table and label. The numbers are in ``published.toml``; the settings that
a row stands for are in the sweep file of its table, ``experiments/<paper>/<table>.toml``.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from statistics import mean
from typing import Any, Literal

from fedchoir.core.result import Result
from fedchoir.data.options import DataOptions
from fedchoir.experiments.config import Plan, make_plan
from fedchoir.experiments.reproduce import runs_of, table_with_runs, tables

DATA = set(DataOptions.model_fields) | {"fraction"}
"""Settings that change the data. Runs that differ in one of them are not compared."""
Unit = Literal["rounds", "interactions"]
"""What a count of rounds counts: averagings, or exchanges of models as well."""
IRRELEVANT = {"evaluate_every", "clients"}
"""Settings whose difference from the paper needs no note."""


@dataclass(frozen=True)
class Printed:
    """One number of one table: ``value`` is the average over clients, ``clients`` the values it averages where printed.

    ``metric`` is ``intra``, ``inter`` or ``rounds`` (to reach ``target``, counted in ``unit``). The accuracy of one
    global model is ``intra``. Where a paper prints no average, ``value`` is the mean of the columns.
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
    unit: Unit = "rounds"
    doubt: str = ""


@dataclass(frozen=True)
class Match:
    """The published numbers of a run, by metric. ``notes`` name the settings in which the run differs from the paper.

    With ``other_data`` the numbers are for another scenario and cannot be subtracted from ours.
    """

    printed: Mapping[str, Printed] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    other_data: bool = False

    def __bool__(self) -> bool:
        return bool(self.printed)


@cache
def printed() -> tuple[Printed, ...]:
    """Return every number of ``published.toml``."""
    content = tomllib.loads((files("fedchoir.experiments") / "published.toml").read_text(encoding="utf-8"))
    return tuple(number for block in content["table"] for number in _numbers(block))


@cache
def left_open(paper: str) -> frozenset[str]:
    """Return the options that a paper, such as ``fedct``, does not give."""
    content = tomllib.loads((files("fedchoir.experiments") / "published.toml").read_text(encoding="utf-8"))
    return frozenset(content["left_open"].get(paper, ()))


def _numbers(block: Mapping[str, Any]) -> list[Printed]:
    columns: list[str] = block["columns"]
    shared: dict[str, Any] = {
        "table": block["of"],
        "scenario": block["scenario"],
        "public": block.get("public"),
        "models": tuple(block["models"].split(",")) if "models" in block else None,
        "metric": {"accuracy": "intra"}.get(block["metric"], block["metric"]),
        "unit": block.get("unit", "rounds"),
    }
    made = []
    for label, values in block["rows"].items():
        remarks = (block.get(kind, {}).get(label) for kind in ("doubts", "readings"))
        shared["doubt"] = "; ".join(remark for remark in remarks if remark)
        sds = {i: sd for i, (column, sd) in enumerate(zip(columns[1:], values[1:], strict=True)) if column == "±"}
        if any("=" in column for column in columns):
            targets = iter(block.get("target", ()))
            for i, column in enumerate(columns):
                if "=" in column:
                    number = {"value": values[i], "sd": sds.get(i), "target": next(targets, None)}
                    made.append(Printed(**shared, label=f"{label} {column}", **number))
            continue
        clients = tuple(v for c, v in zip(columns, values, strict=True) if c not in ("avg", "±", "best"))
        average = columns.index("avg") if "avg" in columns else None
        value, sd = (mean(clients), None) if average is None else (values[average], sds.get(average))
        made.append(Printed(**shared, label=label, value=value, sd=sd, clients=clients, target=block.get("target")))
    return made


def match(result: Result, keys: Sequence[str]) -> Match:
    """Return the numbers of the published rows with these keys; of several, those with the run's data and models."""

    def agreement(number: Printed) -> tuple[bool, bool, bool]:
        return number.scenario == result.scenario, number.public == result.public, number.models == models

    models = tuple(client["model"] for client in result.clients)
    found: dict[str, Printed] = {}
    for key in keys:
        table, _, label = key.partition(":")
        for number in printed() if table in tables() else ():
            if number.label == label and table_with_runs(number.table) == table_with_runs(table):
                found[number.metric] = max(found.get(number.metric, number), number, key=agreement)
    if any(number.scenario != result.scenario for number in found.values()):
        return Match(found, other_data=True)
    notes = {name: note for number in found.values() for name, note in differences(result, number).items()}
    return Match(found, tuple(notes.values()))


def differences(result: Result, number: Printed) -> dict[str, str]:
    """Return the settings in which a run differs from the paper's, each as ``name ours (theirs)``; of options that the
    paper leaves open, those that are not what ``--profile paper`` has, as ``name ours (not given)``."""
    if (plan := paper_plan(number)) is None:
        return {}
    defaults = type(plan.params)().model_dump(mode="json")  # of options that are younger than the run
    ours = {"rounds": result.rounds, "models": [client["model"] for client in result.clients], "public": result.public}
    models = [plan.models[k % len(plan.models)] for k in range(len(result.clients))]
    theirs = {"rounds": plan.rounds, "models": models, "public": plan.public, **plan.params.model_dump(mode="json")}
    pairs = {
        name: (value, theirs[name]) for name, value in (ours | defaults | result.settings).items() if name in theirs
    }
    open_options = left_open(number.table.partition("/")[0])
    return {
        name: f"{name} {_text(own)} ({'not given' if name in open_options else _text(other)})"
        for name, (own, other) in pairs.items()
        if own != other and name not in IRRELEVANT and (result.public or not name.startswith("public"))
    }


def _text(value: Any) -> str:
    return ", ".join(dict.fromkeys(map(str, value))) if isinstance(value, list) else str(value)


@cache
def paper_plan(number: Printed) -> Plan | None:
    """Return the plan of the run that a published number stands for; None for a method that is not implemented."""
    for job in runs_of(number.table):
        run = job.experiment
        same_models = number.models is None or run.models is None or run.models == number.models
        same_public = number.public is None or run.public in (None, number.public)
        if (job.label, run.scenario) == (number.label, number.scenario) and same_models and same_public:
            return make_plan(run)
    return None
