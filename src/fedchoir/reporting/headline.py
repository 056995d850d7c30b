"""Which metric a table shows, and its values over the clients of a result."""

from collections.abc import Iterable

from fedchoir.core.metric_summary import ClientSummary, summarise_clients
from fedchoir.core.metrics import METRICS
from fedchoir.core.result import Result
from fedchoir.utils.errors import UsageError

SCOPES = ("intra", "inter")
"""Scores on the clients' own domains, and on the others'."""
ALL_SCOPES = (*SCOPES, "unseen")
"""The same, and scores on a domain that no client has, where one is held out."""


def headline_of(results: Iterable[Result]) -> str:
    """The metric that the runs share as their headline; accuracy where they differ."""
    named = {result.metric for result in results}
    return named.pop() if len(named) == 1 else "accuracy"


def check_metric(name: str) -> str:
    """The name of a metric as a user gave it; `UsageError` if there is none."""
    if name not in METRICS:
        raise UsageError(f"there is no metric {name!r}; choose one of {', '.join(METRICS)}")
    return name


def heading(metric: str, scope: str = "") -> str:
    """The heading of a column.

    >>> heading("accuracy", "intra"), heading("auroc", "intra"), heading("log_loss")
    ('intra %', 'intra AUROC %', 'log loss')
    """
    if metric == "accuracy" and scope:
        return f"{scope} %"
    return f"{scope} {METRICS[metric].heading}".strip()


def summary_of(result: Result, metric: str, scope: str) -> ClientSummary | None:
    """A metric over the clients of a result: ``intra``, ``inter``, or under label skew ``own``; None without values."""
    if metric != "accuracy":
        return result.metrics_summary.get(metric, {}).get(scope)
    names = [client["name"] for client in result.clients]
    values = getattr(result, scope)
    return summarise_clients(values, names, metric) if values and len(values) == len(names) else None


def score_of(result: Result, metric: str, scope: str) -> float | None:
    """A score of a run, averaged over clients; None where it has none."""
    if metric == "accuracy":
        average: float | None = getattr(result, f"{scope}_avg")
        return average
    return summary.mean if (summary := summary_of(result, metric, scope)) else None


def over_clients(result: Result, metric: str) -> ClientSummary | None:
    """The summary that shows the worst client: on the clients' own shares under label skew, else on their own domains.
    None if there is only one client."""
    found = summary_of(result, metric, "own") or summary_of(result, metric, "intra")
    return found if found is not None and len(found.clients) > 1 else None
