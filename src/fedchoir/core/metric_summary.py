"""Scores of all clients, as fields of an event and of the result: matrices, mean, worst client and spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import pstdev
from typing import Any

from pydantic import BaseModel, ConfigDict

from fedchoir.core.evaluation import intra_inter
from fedchoir.core.federation_spec import FederationSpec
from fedchoir.core.metrics import METRICS, defined_mean
from fedchoir.core.scores import Evaluation, TestScore

Cells = Sequence[float | None]


class ClientSummary(BaseModel):
    """One metric over the clients: each client's value, their mean, the worst and its client, and the spread (standard
    deviation). None where the metric is not defined."""

    model_config = ConfigDict(frozen=True)

    clients: list[float | None]
    mean: float | None
    worst: float | None
    worst_client: str | None
    spread: float | None


class BestRound(BaseModel):
    """A client's best round (counted from 0) by its validation share, and its scores on the tests in that round."""

    model_config = ConfigDict(frozen=True)

    client: str
    round: int
    validation: float | None
    metrics: dict[str, list[float | None]]


def event_fields(
    found: Sequence[Evaluation | None] | None, spec: FederationSpec, tests: Sequence[str]
) -> dict[str, Any]:
    """What the event of a round holds about its evaluation; ``accuracy`` is None in a round without one.

    ``metrics``, ``metrics_own`` and ``metrics_ci`` are only there in rounds that computed them, ``validation`` only if
    there is a validation share, ``headline`` only if the headline metric is not accuracy, ``unseen_avg`` (the mean over
    the clients) only if a domain is held out.
    """
    if found is None:
        return {"accuracy": None, "intra_avg": None, "inter_avg": None}
    count = len(tests)
    rows = [None if e is None or not e.tests else e.tests[:count] for e in found]
    own = [e.tests[count] if e is not None and len(e.tests) > count else None for e in found]
    accuracy = [[score.accuracy for score in row] if row else None for row in rows]
    fields: dict[str, Any] = {"accuracy": accuracy, **_averages(accuracy, spec, tests)}
    if any(own):
        fields["own"] = [score.accuracy if score else None for score in own]
    if any(score.metrics for row in rows for score in row or ()):
        fields["metrics"] = {name: _matrix(rows, "metrics", name) for name in METRICS}
        if spec.metric != "accuracy":
            averages = _averages(fields["metrics"][spec.metric], spec, tests)
            fields["headline"] = {"metric": spec.metric, **averages}
        if any(own):
            fields["metrics_own"] = {name: [s.metrics.get(name) if s else None for s in own] for name in METRICS}
    if any(score.intervals for row in rows for score in row or ()):
        fields["metrics_ci"] = {name: _matrix(rows, "intervals", name) for name in METRICS}
    if any(e is not None and e.validation is not None for e in found):
        fields["validation"] = [
            {"score": e.validation.score, "best_round": e.validation.best_round} if e and e.validation else None
            for e in found
        ]
    return fields


def _matrix(rows: Sequence[Sequence[TestScore] | None], field: str, metric: str) -> list[list[Any] | None]:
    return [[getattr(score, field).get(metric) for score in row] if row else None for row in rows]


def _averages(rows: Sequence[Cells | None], spec: FederationSpec, tests: Sequence[str]) -> dict[str, float | None]:
    intra, inter = by_client(rows, spec, tests)
    averages = {"intra_avg": defined_mean(intra), "inter_avg": defined_mean(inter)}
    return averages | ({"unseen_avg": defined_mean(unseen(rows, spec, tests))} if spec.held_out else {})


def unseen(rows: Sequence[Cells | None], spec: FederationSpec, tests: Sequence[str]) -> list[float | None]:
    """Each client's score on the domain that no client has; empty where there is none."""
    if spec.held_out is None or spec.held_out not in tests:
        return []
    column = list(tests).index(spec.held_out)
    return [row[column] if row else None for row in rows]


def by_client(
    rows: Sequence[Cells | None], spec: FederationSpec, tests: Sequence[str]
) -> tuple[list[float | None], list[float | None]]:
    """Each client's intra- and inter-domain score; None where it has none."""
    pairs: list[tuple[float | None, float | None]] = []
    for row, info in zip(rows, spec.clients, strict=True):
        domain = list(tests).index(info.domain) if info.domain in tests else None
        pairs.append(intra_inter(row, domain) if row else (None, None))
    return [intra for intra, _ in pairs], [inter for _, inter in pairs]


def headline(event: Mapping[str, Any]) -> tuple[str, float | None, float | None]:
    """The headline metric of an event: its name and its intra- and inter-domain means over the clients."""
    found = event.get("headline") or {"metric": "accuracy", **event}
    return found["metric"], found.get("intra_avg"), found.get("inter_avg")


def result_fields(
    everyone: FederationSpec, kept: FederationSpec, tests: Sequence[str], events: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The metrics of the clients in a result. ``everyone`` are the clients of the events."""
    names = [info.name for info in everyone.clients]
    places = [names.index(info.name) for info in kept.clients]
    scored = [event for event in events if "metrics" in event][-3:]
    fields: dict[str, Any] = {"metric": everyone.metric}
    if not scored or not places:
        return fields
    matrices = {name: [_mean_row([e["metrics"][name][k] for e in scored]) for k in places] for name in METRICS}
    shares = [event["metrics_own"] for event in scored if "metrics_own" in event]
    own = {name: [defined_mean([share[name][k] for share in shares]) for k in places] for name in METRICS}
    summary: dict[str, dict[str, ClientSummary]] = {}
    for name, matrix in matrices.items():
        intra, inter = by_client(matrix, kept, tests)
        scopes = {"intra": intra, "inter": inter, "own": own[name], "unseen": unseen(matrix, kept, tests)}
        filled = {scope: values for scope, values in scopes.items() if any(v is not None for v in values)}
        clients = [info.name for info in kept.clients]
        summary[name] = {scope: summarise_clients(values, clients, name) for scope, values in filled.items()}
    intervals = next((e["metrics_ci"] for e in reversed(events) if "metrics_ci" in e), None)
    if intervals is not None:
        fields["metrics_ci"] = {name: [intervals[name][k] or [] for k in places] for name in METRICS}
    return {**fields, "metrics": matrices, "metrics_summary": summary, "best": best_rounds(names, places, events)}


def _mean_row(rows: Sequence[Cells | None]) -> list[float | None]:
    """The mean of each test over the rounds in which the client was evaluated; empty where it never was."""
    return [defined_mean(cells) for cells in zip(*(row for row in rows if row), strict=True)]


def summarise_clients(values: Cells, names: Sequence[str], metric: str) -> ClientSummary:
    """
    >>> summarise_clients([90.0, None, 70.0], ["a", "b", "c"], "auroc")
    ClientSummary(clients=[90.0, None, 70.0], mean=80.0, worst=70.0, worst_client='c', spread=10.0)
    """
    defined = [(value, name) for value, name in zip(values, names, strict=True) if value is not None]
    if not defined:
        return ClientSummary(clients=list(values), mean=None, worst=None, worst_client=None, spread=None)
    sign = 1 if METRICS[metric].larger_is_better else -1
    worst, client = min(defined, key=lambda pair: sign * pair[0])
    spread = pstdev(value for value, _ in defined)
    return ClientSummary(
        clients=list(values), mean=defined_mean(values), worst=worst, worst_client=client, spread=spread
    )


def best_rounds(names: Sequence[str], places: Sequence[int], events: Sequence[Mapping[str, Any]]) -> list[BestRound]:
    """The best round of every client that has one."""
    by_round = {event["round"]: event for event in events if "validation" in event}
    found = []
    for k in places:
        reports = [event["validation"][k] for event in by_round.values() if event["validation"][k]]
        last = next((report["best_round"] for report in reversed(reports) if report["best_round"] is not None), None)
        event = by_round.get(last)
        if event is None or not event["validation"][k]:
            continue
        metrics = {name: matrix[k] or [] for name, matrix in event.get("metrics", {}).items()}
        score = event["validation"][k]["score"]
        found.append(BestRound(client=names[k], round=event["round"], validation=score, metrics=metrics))
    return found
