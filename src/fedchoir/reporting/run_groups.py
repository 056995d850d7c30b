"""Finished runs as rows: those that differ in their seed alone become one, rows of one setting stand together."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fedchoir.core.result import Event, Result, load_result, read_events
from fedchoir.core.settings import Settings
from fedchoir.data.options import DataOptions
from fedchoir.data.registry import SCENARIOS
from fedchoir.experiments.published import Match, match
from fedchoir.utils.errors import UsageError

DATA_KEYS = {field.name for field in fields(DataOptions)} | {"fraction"}
"""Settings that make it another problem, so that runs which differ in them are not compared."""


@dataclass(frozen=True)
class Number:
    """A mean over seeds, with its standard deviation where there are several."""

    mean: float
    sd: float | None = None

    def text(self, plus_minus: str = "±") -> str:
        return f"{self.mean:.2f}" if self.sd is None else f"{self.mean:.2f} {plus_minus} {self.sd:.2f}"


def over_seeds(values: Sequence[float]) -> Number:
    """
    >>> over_seeds([1.0, 2.0, 3.0])
    Number(mean=2.0, sd=1.0)
    """
    return Number(mean(values), stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True)
class Row:
    """All the runs of one method with one setting, over seeds."""

    method: str
    label: str
    group: str
    results: tuple[Result, ...] = field(repr=False)

    @property
    def intra(self) -> Number:
        return over_seeds([r.intra_avg for r in self.results])

    @property
    def inter(self) -> Number | None:
        values = [r.inter_avg for r in self.results if r.inter_avg is not None]
        return over_seeds(values) if values else None

    def number(self, metric: str) -> Number | None:
        return self.intra if metric == "intra" else self.inter

    def clients(self, metric: str) -> list[Number]:
        """One number a client; nothing where the runs do not have the same clients."""
        lists = [r.intra if metric == "intra" else r.inter for r in self.results]
        return [over_seeds(values) for values in zip(*lists, strict=True)] if len(set(map(len, lists))) == 1 else []

    @cached_property
    def published(self) -> Match:
        """What a paper prints for this setting."""
        return match(self.results[0], table=extra(self.results[0], "table"), label=extra(self.results[0], "label"))

    @property
    def bytes_per_round(self) -> float:
        """Up and down, all clients together."""
        return mean((r.bytes_up + r.bytes_down) / r.rounds for r in self.results)

    @property
    def seconds(self) -> float:
        return mean(r.seconds["total"] for r in self.results)

    def rounds_to(self, target: float) -> float | None:
        """Rounds until the mean accuracy (intra) reached the target, over seeds; None if a run never did."""
        counts = [_rounds_to(r, target) for r in self.results]
        return None if None in counts else mean(c for c in counts if c is not None)


def _rounds_to(result: Result, target: float) -> int | None:
    return next((event["round"] + 1 for event in evaluated(result) if event["intra_avg"] >= target), None)


def evaluated(result: Result) -> list[Event]:
    """The rounds of a run in which its models were tested, if its folder tells."""
    folder = extra(result, "folder")
    events = read_events(Path(folder) / "events.jsonl") if folder else []
    return [event for event in events if event["intra_avg"] is not None]


def extra(result: Result, name: str) -> Any:
    """What `find_results` knows beside a result: ``folder``, and of a sweep ``table``, ``label`` and ``order``."""
    return (result.model_extra or {}).get(name)


def find_results(paths: Sequence[Path]) -> list[Result]:
    """Every ``result.json`` in the folders given, and in the folders in them."""
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise UsageError(f"there is no {path}")
        found += [path] if path.is_file() else sorted(path.rglob("result.json"))
    if not found:
        raise UsageError(f"no result.json in {', '.join(map(str, paths))}: no run there has finished yet")
    results = [load_result(path).model_copy(update=_beside(path.parent)) for path in dict.fromkeys(found)]
    return sorted(results, key=lambda r: extra(r, "order") or 0)  # as in the sweep's file, else as found


def _beside(folder: Path) -> dict[str, Any]:
    """What a run's folder says: where it is, and in a sweep which table it belongs to and what it is called there."""
    try:
        sweep = json.loads((folder.parent / "sweep.json").read_text())
        label = sweep["runs"][folder.name]
        order = list(sweep["runs"]).index(folder.name)
    except (OSError, ValueError, KeyError, TypeError):
        return {"folder": str(folder)}
    return {"folder": str(folder), "table": sweep.get("table"), "label": label, "order": order}


def rows(results: Sequence[Result]) -> list[Row]:
    """Runs that differ in their seed alone become one row; rows of one setting stand together, solo first."""
    bundles: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        bundles.setdefault((group_of(result), _identity(result)), []).append(result)
    made: list[Row] = []
    for (group, _), runs in bundles.items():
        rivals = [others[0] for (other, _), others in bundles.items() if other == group]
        made.append(Row(runs[0].method, label_of(runs[0], rivals), group, tuple(runs)))
    return sorted(made, key=lambda row: (row.group, row.method != "solo"))


def grouped(table_rows: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    groups: dict[str, list[Row]] = {}
    for row in table_rows:
        groups.setdefault(row.group, []).append(row)
    return list(groups.items())


def alone(members: Iterable[Row]) -> Row | None:
    """Every client alone, which others are compared with; where there are several such rows, the plainest."""
    return min((row for row in members if row.method == "solo"), key=lambda row: len(row.label), default=None)


def _identity(result: Result) -> str:
    """All that makes a run what it is, but for its seed."""
    facts = {"settings": result.settings, "precision": result.precision, "label": extra(result, "label")}
    return json.dumps([result.method, result.profile, result.public, facts], sort_keys=True)


def group_of(result: Result) -> str:
    """What must agree for two runs to be compared: data, models and length."""
    models = [client["model"] for client in result.clients]
    shown = models[0] if len(set(models)) == 1 else ", ".join(models if len(models) <= 8 else dict.fromkeys(models))
    parts = [result.scenario, f"{len(models)} clients ({shown})", f"{result.rounds} rounds", *_data_of(result)]
    return " · ".join(parts)


def _data_of(result: Result) -> list[str]:
    """Data options that are not the scenario's own; the skew always where labels are skewed."""
    known = SCENARIOS.get(result.scenario)
    skewed = known is not None and known.kind == "label-skew" and result.settings.get("partition") == "dirichlet"
    usual = {name: Settings.model_fields[name].default for name in DATA_KEYS} | (known.defaults if known else {})
    found = {name: value for name, value in result.settings.items() if name in DATA_KEYS and name != "clients"}
    return [f"{k}={v}" for k, v in sorted(found.items()) if v != usual.get(k) or (skewed and k == "beta")]


def label_of(result: Result, among: Sequence[Result]) -> str:
    """A sweep's label, or the method; and whatever else tells it from the others of the same name in its group."""
    name = extra(result, "label") or result.method
    same = [r for r in among if (extra(r, "label") or r.method) == name]
    parts = [name]
    if len({r.profile for r in same}) > 1 or (result.profile != "fixed" and extra(result, "label") is None):
        parts.append(result.profile)
    rivals = [r for r in same if r.profile == result.profile and r.method == result.method]
    differing = {k for r in rivals for k in result.settings if r.settings.get(k) != result.settings[k]}
    parts += [f"{k}={result.settings[k]}" for k in sorted(differing - DATA_KEYS)]
    parts += [f"{k}={getattr(result, k)}" for k in ("public", "precision") if len({getattr(r, k) for r in same}) > 1]
    return " ".join(parts)
