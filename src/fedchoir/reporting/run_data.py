"""Runs as data for the pages: everything in a folder, finished or not, as plain JSON values."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.core.result import Event, Result, read_events, summarise
from fedchoir.reporting.store import find_results
from fedchoir.utils.errors import QuorumError, UsageError

MATRIX_CELLS = 1_500_000
"""Accuracies that a page holds at most; beyond that it keeps the matrices of fewer rounds."""


@dataclass(frozen=True)
class Run:
    """One run as its folder tells it. ``result`` is what it came to, or has come to so far."""

    folder: Path
    result: Result
    events: tuple[Event, ...] = field(repr=False)
    planned: int
    own_tests: tuple[int | None, ...]
    """The column of each client's own test set."""
    rows: tuple[int, ...]
    """The rows of an event's accuracy matrix that belong to the clients of the result."""
    finished: bool
    toml: str = field(default="", repr=False)


def is_run(folder: Path) -> bool:
    return (folder / "events.jsonl").is_file() or (folder / "result.json").is_file()


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The run folders among the paths and below them, in order, each once."""
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise UsageError(f"there is no {path}")
        folder = path.parent if path.is_file() else path
        below = (file.parent for name in ("events.jsonl", "result.json") for file in folder.rglob(name))
        found += [folder] if is_run(folder) else sorted(set(below))
    return list(dict.fromkeys(found))


def read_run(folder: Path) -> Run | None:
    """The run in a folder; None where nothing can be told yet (no evaluated round, or unreadable files)."""
    events = read_valid_events(folder / "events.jsonl")
    task = read_json(folder / "task.json")
    told = read_json(folder / "result.json")
    toml = _text(folder / "experiment.toml")
    try:
        result = find_results([folder / "result.json"])[0] if told else unfinished(task, events)
        if result is None:
            return None
        planned = result.rounds if told else int(task.get("rounds", 0)) or len(events)
        names = [client["name"] for client in task.get("clients", result.clients)]
        rows = tuple(names.index(client["name"]) for client in result.clients)
        return Run(folder, result, tuple(events), planned, own_tests(result, task), rows, bool(told), toml)
    except (ValueError, TypeError, LookupError, AttributeError, QuorumError):  # damaged files
        return None


class _Event(BaseModel):
    """What the pages need of an event; a line that does not fit counts as damaged."""

    round: int
    accuracy: list[list[float] | None] | None = None
    own: list[float | None] | None = None
    intra_avg: float | None = None
    inter_avg: float | None = None
    losses: dict[str, dict[str, float | None]] = {}
    seconds: dict[str, float] = {}
    left_out: list[dict[str, Any]] = []
    bytes_up: int = 0
    bytes_down: int = 0
    messages: int = 0


def read_valid_events(path: Path) -> list[Event]:
    """The events of a run up to the first damaged line."""
    try:
        return list(takewhile(_is_valid, read_events(path)))
    except (OSError, UnicodeDecodeError):
        return []


def _is_valid(event: Any) -> bool:
    try:
        _Event.model_validate(event)
    except ValidationError:
        return False
    return True


def unfinished(task: dict[str, Any], events: Sequence[Event]) -> Result | None:
    """The result of the rounds that a running experiment has finished; None before the first evaluated round."""
    if not any(event.get("accuracy") for event in events) or "method" not in task:
        return None
    clients = [
        ClientInfo(c["name"], c["model"], c["train"], c["test"], c.get("domain", c.get("home", c["name"])))
        for c in task["clients"]
    ]
    spec = FederationSpec(tuple(task["classes"]), tuple(clients), task["rounds"], task["seed"])
    known = ("method", "profile", "scenario", "public", "seed", "settings", "precision")
    facts = {key: task[key] for key in known} | {"notes": ["this run is not finished"], "device": ""}
    return summarise(spec, task["tests"], events, facts)


def own_tests(result: Result, task: dict[str, Any]) -> tuple[int | None, ...]:
    """The column of each client's own test set; None where there is no such column (label skew)."""
    if len(result.tests) < 2:
        return (None,) * len(result.clients)
    domains = {c.get("name"): c.get("domain", c.get("home")) for c in task.get("clients", []) if isinstance(c, dict)}
    columns: list[int | None] = []
    for number, client in enumerate(result.clients):
        domain = domains.get(client["name"]) or client["name"]
        if domain in result.tests:
            columns.append(result.tests.index(domain))
        else:
            columns.append(number if len(result.tests) == len(result.clients) else None)
    return tuple(columns)


def run_data(run: Run, name: str, *, matrices: int) -> dict[str, Any]:
    """One run as JSON values for the page; ``matrices`` bounds how many rounds keep their accuracy matrix."""
    result, events = run.result, run.events
    kept = set(thin([i for i, event in enumerate(events) if event.get("accuracy")], matrices))
    names = [client["name"] for client in result.clients]
    return {
        "name": name, "method": result.method, "profile": result.profile, "scenario": result.scenario,
        "public": result.public, "seed": result.seed, "finished": run.finished, "planned": run.planned,
        "clients": result.clients, "tests": result.tests, "own_tests": run.own_tests,
        "rounds": [event["round"] + 1 for event in events],
        "intra": [tidy(event.get("intra_avg"), 6) for event in events],
        "inter": [tidy(event.get("inter_avg"), 6) for event in events],
        "accuracy": [_matrix(event["accuracy"], run) if i in kept else None for i, event in enumerate(events)],
        "own": [[tidy(event["own"][k]) for k in run.rows] if event.get("own") else None for event in events],
        "losses": losses(names, events),
        **{key: [int(event.get(key, 0)) for event in events] for key in ("bytes_up", "bytes_down", "messages")},
        "seconds": phases(events),
        "left_out": [{**_words(out), "round": event["round"] + 1}
                     for event in events for out in event.get("left_out", [])],
        "settings": result.settings, "notes": result.notes, "versions": result.versions, "device": result.device,
        "precision": result.precision, "toml": run.toml,
    }  # fmt: skip


def losses(names: Sequence[str], events: Sequence[Event]) -> dict[str, list[list[float | None]]]:
    """Phase → client → loss of each round."""
    keys = dict.fromkeys(key for event in events for told in event.get("losses", {}).values() for key in told)
    return {
        key.removesuffix("_loss"): [
            [tidy(event.get("losses", {}).get(name, {}).get(key)) for event in events] for name in names
        ]
        for key in keys
    }


def phases(events: Sequence[Event]) -> dict[str, list[float]]:
    """Phase → seconds of each round; what no phase counts is ``other``."""
    keys = dict.fromkeys(key for event in events for key in event.get("seconds", {}) if key != "total")
    rows = [event.get("seconds", {}) for event in events]
    told = {key: [tidy(row.get(key)) or 0.0 for row in rows] for key in keys}
    spent = [sum(row.get(key) or 0.0 for key in keys) for row in rows]
    told["other"] = [tidy(max(0.0, row.get("total", 0.0) - s)) or 0.0 for row, s in zip(rows, spent, strict=True)]
    return told


def matrices_each(runs: Sequence[Run]) -> int:
    """How many rounds of each run may keep their matrix, so that the page stays small."""
    cells = sum(len(run.result.accuracy) * len(run.result.tests) for run in runs)
    return max(10, MATRIX_CELLS // max(1, cells))


def thin(places: Sequence[int], count: int) -> list[int]:
    """At most ``count`` of the places, evenly, with the first and the last.

    >>> thin(range(10), 4), thin([1, 2], 5)
    ([0, 3, 6, 9], [1, 2])
    """
    if len(places) <= count:
        return list(places)
    return [places[round(i * (len(places) - 1) / (count - 1))] for i in range(count)]


def tidy(value: Any, digits: int = 4) -> float | None:
    """A finite number with few digits, or None: JSON knows no NaN.

    >>> tidy(0.123456), tidy(float("nan")), tidy(None), tidy("x")
    (0.1235, None, None, None)
    """
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def _matrix(accuracy: Sequence[Sequence[float] | None], run: Run) -> list[list[float | None]]:
    """The accuracies of one round; a client that missed the evaluation has a row of None."""
    rows = [accuracy[k] or [None] * len(run.result.tests) for k in run.rows]
    return [[None if tidy(value) is None else round(value, 2) for value in row] for row in rows]  # type: ignore[arg-type]


def _words(out: Any) -> dict[str, str]:
    told = out if isinstance(out, dict) else {}
    return {key: str(told.get(key, "")) for key in ("client", "exchange", "why")}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def read_json(path: Path) -> dict[str, Any]:
    try:
        told = json.loads(_text(path) or "{}")
    except json.JSONDecodeError:
        return {}
    return told if isinstance(told, dict) else {}
