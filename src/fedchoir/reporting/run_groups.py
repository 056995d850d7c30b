"""Groups finished runs into table rows: runs that differ only in their seed form one row."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import mean, stdev

from fedchoir.core.result import Event, Result
from fedchoir.core.settings import Settings
from fedchoir.data.registry import SCENARIOS
from fedchoir.experiments.published import DATA, Match, match
from fedchoir.reporting.store import evaluated, extra


@dataclass(frozen=True)
class Number:
    """A mean over seeds, with its standard deviation where there are several."""

    mean: float
    sd: float | None = None

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.sd is None else f"{self.mean:.2f} ± {self.sd:.2f}"


def over_seeds(values: Sequence[float]) -> Number:
    """
    >>> over_seeds([1.0, 2.0, 3.0])
    Number(mean=2.0, sd=1.0)
    """
    return Number(mean(values), stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True)
class Row:
    """The runs of one method with one setting, one per seed. Rows of the same ``group`` can be compared."""

    label: str
    group: str
    results: tuple[Result, ...] = field(repr=False)

    @property
    def method(self) -> str:
        return self.results[0].method

    def number(self, metric: str) -> Number | None:
        """The ``intra`` or ``inter`` accuracy, averaged over clients; None where the runs have none."""
        values = [value for r in self.results if (value := getattr(r, f"{metric}_avg")) is not None]
        return over_seeds(values) if values else None

    def clients(self, metric: str) -> list[Number]:
        """The accuracy of each client; empty if the runs do not have the same clients."""
        lists = [getattr(r, metric) for r in self.results]
        return [over_seeds(values) for values in zip(*lists, strict=True)] if len(set(map(len, lists))) == 1 else []

    @cached_property
    def published(self) -> Match:
        """The numbers that a paper prints for this setting."""
        return match(self.results[0], extra(self.results[0], "published") or ())

    @property
    def bytes_per_round(self) -> float:
        """Bytes in both directions, summed over clients."""
        return mean((r.bytes_up + r.bytes_down) / r.rounds for r in self.results)

    @property
    def seconds(self) -> float:
        return mean(r.seconds["total"] for r in self.results)

    def rounds_to(self, target: float) -> float | None:
        """Rounds until the mean intra accuracy reached the target, over seeds; None if a run never reached it."""
        counts = [rounds_to_target(evaluated(r), target) for r in self.results]
        return None if None in counts else mean(c for c in counts if c is not None)


def rounds_to_target(events: Iterable[Event], target: float) -> int | None:
    """The number of rounds after which the mean intra accuracy was first at ``target`` percent or above.

    Only evaluated rounds count (``evaluate_every``).

    >>> events = [{"round": 0, "intra_avg": 40.0}, {"round": 1, "intra_avg": None}, {"round": 2, "intra_avg": 55.0}]
    >>> rounds_to_target(events, 50), rounds_to_target(events, 60)
    (3, None)
    """
    scored = (event for event in events if event["intra_avg"] is not None)
    return next((event["round"] + 1 for event in scored if event["intra_avg"] >= target), None)


def rows(results: Sequence[Result]) -> list[Row]:
    """One row for the runs that differ only in their seed, sorted by group, solo first."""
    bundles: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        bundles.setdefault((group_of(result), _identity(result)), []).append(result)
    made = []
    for (group, _), runs in bundles.items():
        in_group = [others[0] for (other, _), others in bundles.items() if other == group]
        made.append(Row(label_of(runs[0], in_group), group, tuple(runs)))
    return sorted(made, key=lambda row: (row.group, row.method != "solo"))


def grouped(table_rows: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    """The rows of each group."""
    groups: dict[str, list[Row]] = {}
    for row in table_rows:
        groups.setdefault(row.group, []).append(row)
    return list(groups.items())


def delta(row: Row, group_rows: Iterable[Row], metric: str) -> float | None:
    """The gain over ``solo``; where the group has several solo rows, over the one with the shortest label."""
    solos = [other for other in group_rows if other.method == "solo"]
    if not solos or row.method == "solo":
        return None
    base, own = min(solos, key=lambda solo: len(solo.label)).number(metric), row.number(metric)
    return None if base is None or own is None else own.mean - base.mean


def _identity(result: Result) -> str:
    """Everything that defines a run except its seed."""
    facts = {"settings": result.settings, "precision": result.precision, "label": extra(result, "label")}
    return json.dumps([result.method, result.profile, result.public, facts], sort_keys=True)


def group_of(result: Result) -> str:
    """What two runs must share to be compared: data, models and number of rounds."""
    models = [client["model"] for client in result.clients]
    shown = models[0] if len(set(models)) == 1 else ", ".join(models if len(models) <= 8 else dict.fromkeys(models))
    facts = [result.scenario, f"{len(models)} clients ({shown})", f"{result.rounds} rounds", *_data_options(result)]
    return " · ".join(facts)


def _data_options(result: Result) -> list[str]:
    """Data options that differ from the scenario's defaults; ``beta`` always where labels are skewed."""
    known = SCENARIOS.get(result.scenario)
    skewed = known is not None and known.kind == "label-skew" and result.settings.get("partition") == "dirichlet"
    usual = {name: Settings.model_fields[name].default for name in DATA} | (known.defaults if known else {})
    found = {name: value for name, value in result.settings.items() if name in DATA and name != "clients"}
    return [f"{k}={v}" for k, v in sorted(found.items()) if v != usual.get(k) or (skewed and k == "beta")]


def label_of(result: Result, in_group: Sequence[Result]) -> str:
    """The sweep's label or the method, and what distinguishes the run from others of that name in its group."""
    name = extra(result, "label") or result.method
    same = [r for r in in_group if (extra(r, "label") or r.method) == name]
    words = [name]
    if len({r.profile for r in same}) > 1 or (result.profile != "fixed" and extra(result, "label") is None):
        words.append(result.profile)
    variants = [r for r in same if r.profile == result.profile and r.method == result.method]
    differing = {k for r in variants for k in result.settings if r.settings.get(k) != result.settings[k]}
    words += [f"{k}={result.settings[k]}" for k in sorted(differing - DATA)]
    words += [f"{k}={getattr(result, k)}" for k in ("public", "precision") if len({getattr(r, k) for r in same}) > 1]
    return " ".join(words)
