"""Runs as JSON values for the report and the live page, finished or not."""

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ValidationError

from fedchoir.core.evaluation import intra_inter
from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.core.metrics import METRICS, defined_mean
from fedchoir.core.result import Event, Result, read_events, summarise
from fedchoir.reporting.store import STORE, events_of, extra, find_results, stored_results
from fedchoir.utils.errors import UsageError

MATRIX_CELLS = 1_500_000
"""Accuracies that a page holds at most; beyond that it keeps the matrices of fewer rounds."""


@dataclass(frozen=True)
class Run:
    """One run: its result (so far, if it is not finished) and its rounds.

    ``own_tests`` holds the column of each client's own test set; None where it has none (label skew). ``rows`` are the
    rows of an event's accuracy matrix that belong to the clients of the result.
    """

    folder: Path
    result: Result
    events: tuple[Event, ...] = field(repr=False)
    planned: int
    own_tests: tuple[int | None, ...]
    rows: tuple[int, ...]
    finished: bool
    toml: str = field(default="", repr=False)


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Return every run below the paths, each once: of run folders, and of stores (``runs.jsonl``)."""
    found = [run for run in map(read_run, find_runs(paths)) if run is not None]
    for path in paths:
        for store in [path] if path.suffix == ".jsonl" else sorted(path.rglob(STORE)):
            found += [stored_run(result) for result in stored_results(store)]
    return found


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Return the run folders among the paths and below them, in order, each once."""
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path} does not exist")
        folder = path.parent if path.is_file() and path.suffix != ".jsonl" else path
        files = [file for name in ("events.jsonl", "result.json") for file in folder.rglob(name)]
        folders = {file.parent for file in files}
        found += [folder] if folder in folders else sorted(folders)
    return list(dict.fromkeys(found))


def read_run(folder: Path) -> Run | None:
    """Return the run in a folder; None before its first evaluated round, or if its files are damaged."""
    events, task = read_valid_events(folder / "events.jsonl"), read_json(folder / "task.json")
    finished = bool(read_json(folder / "result.json"))
    try:
        result = find_results([folder / "result.json"])[0] if finished else unfinished(task, events)
        if result is None:
            return None
        planned = result.rounds if finished else int(task.get("rounds", 0)) or len(events)
        names = [client["name"] for client in task.get("clients", result.clients)]
        rows = tuple(names.index(client["name"]) for client in result.clients)
        toml = (folder / "experiment.toml").read_text(errors="replace") if (folder / "experiment.toml").exists() else ""
        return Run(folder, result, tuple(events), planned, own_tests(result, task), rows, finished, toml)
    except (ValueError, TypeError, LookupError, AttributeError):  # damaged files
        return None


def stored_run(result: Result) -> Run:
    """Return a run of a store."""
    toml = tomli_w.dumps(extra(result, "experiment") or {})
    folder, events, rows = Path(extra(result, "folder")), tuple(events_of(result)), tuple(range(len(result.clients)))
    return Run(folder, result, events, result.rounds, own_tests(result, {}), rows, True, toml)


class _Event(BaseModel):
    """What the pages need of an event; a line that does not fit counts as damaged."""

    round: int
    accuracy: list[list[float] | None] | None = None
    own: list[float | None] | None = None
    metrics: dict[str, list[list[float | None] | None]] = {}
    metrics_own: dict[str, list[float | None]] = {}
    headline: dict[str, Any] | None = None
    intra_avg: float | None = None
    inter_avg: float | None = None
    losses: dict[str, dict[str, float | None]] = {}
    seconds: dict[str, float] = {}
    left_out: list[dict[str, Any]] = []
    bytes_up: int = 0
    bytes_down: int = 0
    messages: int = 0


def read_valid_events(path: Path) -> list[Event]:
    """Return the events of a run up to the first damaged line."""
    events: list[Event] = []
    with suppress(OSError, UnicodeDecodeError, ValidationError):
        for event in read_events(path):
            _Event.model_validate(event)
            events.append(event)
    return events


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty if the file is missing or damaged."""
    with suppress(OSError, ValueError):
        content = json.loads(path.read_text(encoding="utf-8"))
        return content if isinstance(content, dict) else {}
    return {}


def unfinished(task: dict[str, Any], events: Sequence[Event]) -> Result | None:
    """Return the result of the rounds so far, from ``task.json`` and the events; None before an evaluation."""
    if not any(event.get("accuracy") for event in events) or "method" not in task:
        return None
    clients = tuple(ClientInfo(**client) for client in task["clients"])
    metric = task.get("metric", "accuracy")
    spec = FederationSpec(tuple(task["classes"]), clients, task["rounds"], task["seed"], metric=metric)
    known = ("method", "profile", "scenario", "public", "seed", "settings", "precision")
    facts = {key: task[key] for key in known} | {"notes": ["this run is not finished"], "device": ""}
    return summarise(spec, task["tests"], events, facts)


def own_tests(result: Result, task: dict[str, Any]) -> tuple[int | None, ...]:
    """Return the column of each client's own test set, by its domain's name or, without one, by its own."""
    if len(result.tests) < 2:
        return (None,) * len(result.clients)
    domains = {client["name"]: client.get("domain") for client in task.get("clients", [])}
    columns: list[int | None] = []
    for position, client in enumerate(result.clients):
        domain = domains.get(client["name"]) or client["name"]
        by_position = position if len(result.tests) == len(result.clients) else None
        columns.append(result.tests.index(domain) if domain in result.tests else by_position)
    return tuple(columns)


def own_tests_of(result: Result) -> tuple[int | None, ...]:
    """Return `own_tests` of a finished run, with the domains in its ``task.json`` if its folder is still there."""
    folder = extra(result, "folder")
    return own_tests(result, read_json(Path(folder) / "task.json") if folder else {})


def run_data(run: Run, name: str, *, matrices: int, metric: str | None = None) -> dict[str, Any]:
    """Return a run as JSON values, by its headline metric or another one; at most ``matrices`` of its rounds keep their
    matrix of scores."""
    result, events = run.result, run.events
    metric = metric or result.metric
    scores = [scores_of(event, metric) for event in events]
    averages = [averages_of(event, run, metric) for event in events]
    kept = set(thin([i for i, rows in enumerate(scores) if rows], matrices))
    names = [client["name"] for client in result.clients]
    left_out = [(event["round"] + 1, out) for event in events for out in event.get("left_out", [])]
    return {
        "name": name, "finished": run.finished, "planned": run.planned, "own_tests": run.own_tests, "toml": run.toml,
        **result.model_dump(include={
            "method", "profile", "scenario", "public", "seed", "clients", "tests", "settings", "notes", "versions",
            "device", "precision",
        }),
        "metric": metric_facts(metric),
        "rounds": [event["round"] + 1 for event in events],
        "intra": [tidy(intra, 6) for intra, _ in averages],
        "inter": [tidy(inter, 6) for _, inter in averages],
        "scores": [_matrix(rows, run, metric) if i in kept else None for i, rows in enumerate(scores)],
        "own": [[tidy(own[k]) for k in run.rows] if (own := own_scores(event, metric)) else None for event in events],
        "intervals": intervals_of(run, metric),
        "losses": losses(names, events),
        **{key: [int(event.get(key, 0)) for event in events] for key in ("bytes_up", "bytes_down", "messages")},
        "seconds": phases(events),
        "left_out": [
            {"round": number, **{key: str(out.get(key, "")) for key in ("client", "exchange", "why")}}
            for number, out in left_out
        ],
    }  # fmt: skip


Rows = Sequence[Sequence[float | None] | None]


def scores_of(event: Event, metric: str) -> Rows | None:
    """Return the scores of a round, clients × tests; None if it did not compute them."""
    rows: Rows | None = event.get("accuracy") if metric == "accuracy" else event.get("metrics", {}).get(metric)
    return rows


def own_scores(event: Event, metric: str) -> Sequence[float | None] | None:
    """Return the scores on the clients' own shares of the tests; None where there are none."""
    own: Sequence[float | None] | None
    own = event.get("own") if metric == "accuracy" else event.get("metrics_own", {}).get(metric)
    return own


def averages_of(event: Event, run: Run, metric: str) -> tuple[float | None, float | None]:
    """Return the intra- and inter-domain means over the clients."""
    if metric == "accuracy":
        return event.get("intra_avg"), event.get("inter_avg")
    rows = scores_of(event, metric)
    pairs = [(rows[k], own) for k, own in zip(run.rows, run.own_tests, strict=True)] if rows else []
    split = [intra_inter(row, own) for row, own in pairs if row]
    return defined_mean([intra for intra, _ in split]), defined_mean([inter for _, inter in split])


def metric_facts(metric: str) -> dict[str, Any]:
    """Return what a page needs to show a metric."""
    known = METRICS[metric]
    return {"name": metric, "title": known.title, "heading": known.heading, "percent": known.percent,
            "digits": known.digits, "larger": known.larger_is_better}  # fmt: skip


def intervals_of(run: Run, metric: str) -> list[dict[str, Any]]:
    """Return each client's score on its own test set in the last evaluated round, its 95 % interval, and its best round
    by validation; empty where no intervals were computed."""
    result = run.result
    if metric not in result.metrics_ci:
        return []
    best = {each.client: each for each in result.best}
    made = []
    for k, (client, own) in enumerate(zip(result.clients, run.own_tests, strict=True)):
        spans, column = result.metrics_ci[metric][k], own or 0
        span = spans[column] if spans else None
        kept = best.get(client["name"])
        value = result.metrics[metric][k][column] if result.metrics[metric][k] else None
        at_best = kept.metrics.get(metric, []) if kept else []
        made.append({
            "client": client["name"], "value": tidy(value, 6), "low": tidy(span[0], 6) if span else None,
            "high": tidy(span[1], 6) if span else None, "best_round": kept.round + 1 if kept else None,
            "at_best": tidy(at_best[column], 6) if at_best else None,
        })  # fmt: skip
    return made


def losses(names: Sequence[str], events: Sequence[Event]) -> dict[str, list[list[float | None]]]:
    """Return phase → client → loss of each round."""
    keys = dict.fromkeys(key for event in events for values in event.get("losses", {}).values() for key in values)
    return {
        key.removesuffix("_loss"): [
            [tidy(event.get("losses", {}).get(name, {}).get(key)) for event in events] for name in names
        ]
        for key in keys
    }


def phases(events: Sequence[Event]) -> dict[str, list[float]]:
    """Return phase → seconds of each round; time outside all phases is ``other``."""
    rounds = [event.get("seconds", {}) for event in events]
    keys = dict.fromkeys(key for seconds in rounds for key in seconds if key != "total")
    made = {key: [tidy(seconds.get(key)) or 0.0 for seconds in rounds] for key in keys}
    rest = [seconds.get("total", 0.0) - sum(seconds.get(key) or 0.0 for key in keys) for seconds in rounds]
    return made | {"other": [tidy(max(0.0, value)) or 0.0 for value in rest]}


def matrices_each(runs: Sequence[Run]) -> int:
    """Return how many rounds of each run may keep their accuracy matrix, so that the page stays small."""
    cells = sum(len(run.result.accuracy) * len(run.result.tests) for run in runs)
    return max(10, MATRIX_CELLS // max(1, cells))


def thin(places: Sequence[int], count: int) -> list[int]:
    """Return at most ``count`` of the places, evenly spaced, with the first and the last.

    >>> thin(range(10), 4), thin([1, 2], 5)
    ([0, 3, 6, 9], [1, 2])
    """
    if len(places) <= count:
        return list(places)
    return [places[round(i * (len(places) - 1) / (count - 1))] for i in range(count)]


def tidy(value: Any, digits: int = 4) -> float | None:
    """Return a finite number with few digits, or None: JSON has no NaN.

    >>> tidy(0.123456), tidy(float("nan")), tidy(None), tidy("x")
    (0.1235, None, None, None)
    """
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def _matrix(scores: Rows | None, run: Run, metric: str) -> list[list[float | None]]:
    """Return the scores of one round; a client that missed the evaluation has a row of None."""
    missed: list[float | None] = [None] * len(run.result.tests)
    digits = METRICS[metric].digits
    rows = [scores[k] if scores else None for k in run.rows]
    return [[_rounded(value, digits) for value in row] if row else missed for row in rows]


def _rounded(value: float | None, digits: int) -> float | None:
    return round(value, digits) if value is not None and math.isfinite(value) else None
