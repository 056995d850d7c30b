"""Groups finished runs into table rows: runs that differ only in their seed form one row."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import mean, stdev

from fedchoir.core.metrics import METRICS
from fedchoir.core.result import Event, Result
from fedchoir.core.settings import Settings
from fedchoir.data.registry import SCENARIOS
from fedchoir.experiments.published import DATA, Match, match
from fedchoir.reporting.headline import headline_of, over_clients, score_of, summary_of
from fedchoir.reporting.store import evaluated, extra


@dataclass(frozen=True)
class Number:
    """A mean over seeds, with its standard deviation where there are several."""

    mean: float
    sd: float | None = None
    digits: int = 2

    def __str__(self) -> str:
        shown = f"{self.mean:.{self.digits}f}"
        return shown if self.sd is None else f"{shown} ± {self.sd:.{self.digits}f}"


def over_seeds(values: Sequence[float], digits: int = 2) -> Number:
    """
    >>> over_seeds([1.0, 2.0, 3.0])
    Number(mean=2.0, sd=1.0, digits=2)
    """
    return Number(mean(values), stdev(values) if len(values) > 1 else None, digits)


@dataclass(frozen=True)
class Row:
    """The runs of one method with one setting, one per seed. Rows of the same ``group`` can be compared."""

    label: str
    group: str
    results: tuple[Result, ...] = field(repr=False)
    metric: str = "accuracy"

    @property
    def method(self) -> str:
        return self.results[0].method

    @property
    def digits(self) -> int:
        return METRICS[self.metric].digits

    def number(self, scope: str, metric: str | None = None) -> Number | None:
        """The ``intra`` or ``inter`` score, averaged over clients; None where the runs have none."""
        metric = metric or self.metric
        return _number([score_of(r, metric, scope) for r in self.results], METRICS[metric].digits)

    def clients(self, scope: str) -> list[Number | None]:
        """The score of each client; empty if the runs do not have the same clients."""
        lists = [summary.clients if (summary := summary_of(r, self.metric, scope)) else [] for r in self.results]
        same = len(set(map(len, lists))) == 1
        return [_number(values, self.digits) for values in zip(*lists, strict=True)] if same else []

    def worst(self, metric: str | None = None) -> Number | None:
        """The score of the worst client of each run."""
        return self._over_clients("worst", metric or self.metric)

    def spread(self, metric: str | None = None) -> Number | None:
        """The standard deviation over the clients of each run."""
        return self._over_clients("spread", metric or self.metric)

    def _over_clients(self, field: str, metric: str) -> Number | None:
        found = [over_clients(r, metric) for r in self.results]
        return _number([getattr(summary, field) for summary in found if summary], METRICS[metric].digits)

    @cached_property
    def published(self) -> Match:
        """The numbers that a paper prints for this setting."""
        keys = extra(self.results[0], "published") if self.metric == "accuracy" else None
        return match(self.results[0], keys or ())

    @property
    def bytes_per_round(self) -> float:
        """Bytes in both directions, summed over clients."""
        return mean((r.bytes_up + r.bytes_down) / r.rounds for r in self.results)

    @property
    def seconds(self) -> float:
        return mean(r.seconds["total"] for r in self.results)

    def rounds_to(self, target: float) -> float | None:
        """Rounds until the mean intra score reached the target, over seeds; None if a run never reached it."""
        counts = [rounds_to_target(evaluated(r), target, self.metric) for r in self.results]
        return None if None in counts else mean(c for c in counts if c is not None)

    def interactions_to(self, target: float) -> float | None:
        """The same in interactions of a client with the server: exchanges of models count as well as averagings."""
        rounds = self.rounds_to(target)
        return None if rounds is None else rounds * interactions(self.results[0])


def interactions(result: Result) -> int:
    """Interactions of a round: averaging, and the exchanges of models before it."""
    return 1 + int(result.settings.get("exchanges", 0))


def _number(values: Sequence[float | None], digits: int) -> Number | None:
    defined = [value for value in values if value is not None]
    return over_seeds(defined, digits) if defined else None


def rounds_to_target(events: Iterable[Event], target: float, metric: str = "accuracy") -> int | None:
    """The number of rounds after which the mean intra score was first at ``target`` or better.

    Only evaluated rounds count (``evaluate_every``); of a metric that is not accuracy, only those of a run that has it
    as its headline.

    >>> events = [{"round": 0, "intra_avg": 40.0}, {"round": 1, "intra_avg": None}, {"round": 2, "intra_avg": 55.0}]
    >>> rounds_to_target(events, 50), rounds_to_target(events, 60)
    (3, None)
    """
    for event in events:
        score = event["intra_avg"] if metric == "accuracy" else (event.get("headline") or {}).get("intra_avg")
        if score is not None and (score == target or METRICS[metric].better(score, target)):
            return int(event["round"]) + 1
    return None


def rows(results: Sequence[Result], metric: str | None = None) -> list[Row]:
    """One row for the runs that differ only in their seed, sorted by group, solo first.

    ``metric`` is the headline of all rows; by default the one that the runs of a group share.
    """
    bundles: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        bundles.setdefault((group_of(result), _identity(result)), []).append(result)
    made = []
    for (group, _), runs in bundles.items():
        in_group = [others[0] for (other, _), others in bundles.items() if other == group]
        shown = metric or headline_of(in_group)
        made.append(Row(label_of(runs[0], in_group), group, tuple(runs), shown))
    return sorted(made, key=lambda row: (row.group, row.method != "solo"))


def grouped(table_rows: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    """The rows of each group."""
    groups: dict[str, list[Row]] = {}
    for row in table_rows:
        groups.setdefault(row.group, []).append(row)
    return list(groups.items())


def delta(row: Row, group_rows: Iterable[Row], scope: str) -> float | None:
    """The gain over ``solo``; where the group has several solo rows, over the one with the shortest label."""
    solos = [other for other in group_rows if other.method == "solo"]
    if not solos or row.method == "solo":
        return None
    base, own = min(solos, key=lambda solo: len(solo.label)).number(scope), row.number(scope)
    return None if base is None or own is None else own.mean - base.mean


def _identity(result: Result) -> str:
    """Everything that defines a run except its seed."""
    facts = {"settings": result.settings, "precision": result.precision, "label": extra(result, "label")}
    facts |= {"compress": found} if (found := extra(result, "compress")) else {}
    return json.dumps([result.method, result.profile, result.public, facts], sort_keys=True)


def group_of(result: Result) -> str:
    """What two runs must share to be compared: data, models and number of rounds."""
    models = [client["model"] for client in result.clients]
    rotated = bool(result.settings.get("rotate"))
    models = sorted(models) if rotated else models
    shown = models[0] if len(set(models)) == 1 else ", ".join(models if len(models) <= 8 else dict.fromkeys(models))
    shown += "; rotated" if rotated else ""
    stops_early = result.planned if result.settings.get("early_stopping") else None
    counted = result.rounds * (interactions(result) if result.settings.get("rounds_unit") == "interaction" else 1)
    rounds = f"up to {stops_early} rounds" if stops_early else f"{counted} rounds"
    facts = [result.scenario, f"{len(models)} clients ({shown})", rounds, *_data_options(result)]
    return " · ".join(facts)


def _data_options(result: Result) -> list[str]:
    """Data options that differ from the scenario's defaults; ``beta`` always where labels are skewed."""
    known = SCENARIOS.get(result.scenario)
    skewed = known is not None and known.kind == "label-skew" and result.settings.get("partition") == "dirichlet"
    usual = Settings().model_dump(mode="json", include=DATA) | (known.defaults if known else {})
    found = {name: value for name, value in result.settings.items() if name in DATA - {"clients", "rotate"}}
    return [f"{k}={_shown(v)}" for k, v in sorted(found.items()) if v != usual.get(k) or (skewed and k == "beta")]


def _shown(value: object) -> str:
    """The value of an option in a title; of columns, their names."""
    if isinstance(value, list | tuple) and all(isinstance(item, dict | str) for item in value):
        return ",".join(item if isinstance(item, str) else str(item["name"]) for item in value)
    return str(value)


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
    words += [f"compress={extra(result, 'compress')}"] if len({extra(r, "compress") for r in same}) > 1 else []
    return " ".join(words)
