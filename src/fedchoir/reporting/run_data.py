"""Runs as data for the pages: everything in a folder, finished or not, as plain JSON values."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedchoir.core.evaluation import intra_inter, last_rounds_mean
from fedchoir.core.result import Event, Result, versions
from fedchoir.reporting.tables import find_results
from fedchoir.utils.errors import UsageError

MATRIX_CELLS = 1_500_000
"""Accuracies that a page holds at most; beyond that it keeps the matrices of fewer rounds."""


@dataclass(frozen=True)
class Run:
    """One run as its folder tells it. ``result`` is what it came to, or has come to so far."""

    folder: Path
    result: Result
    events: tuple[Event, ...] = field(repr=False)
    planned: int
    homes: tuple[int | None, ...]
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
    events = [event for event in read_lines(folder / "events.jsonl") if isinstance(event.get("round"), int)]
    task = read_json(folder / "task.json")
    told = read_json(folder / "result.json")
    toml = _text(folder / "experiment.toml")
    try:
        result = find_results([folder / "result.json"])[0] if told else unfinished(task, events)
    except (ValueError, TypeError, KeyError):  # damaged files: UsageError and pydantic's error are ValueErrors
        return None
    if result is None:
        return None
    planned = result.rounds if told else int(task.get("rounds", 0)) or len(events)
    return Run(folder, result, tuple(events), planned, homes(result, task), bool(told), toml)


def read_lines(path: Path) -> list[Event]:
    """The whole lines of an event file. One that is only half there, or damaged, is left out with all after it."""
    events: list[Event] = []
    for line in _text(path).splitlines():
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            break
        if not isinstance(event, dict):
            break
        events.append(event)
    return events


def unfinished(task: dict[str, Any], events: Sequence[Event]) -> Result | None:
    """What a run has come to so far: the mean of its last three evaluated rounds."""
    matrices = [event["accuracy"] for event in events if event.get("accuracy")]
    if not matrices or "method" not in task:
        return None
    accuracy = last_rounds_mean(matrices)
    cards, tests = task["clients"], task["tests"]
    pairs = [
        intra_inter(row, tests.index(card["home"]) if card["home"] in tests else None)
        for row, card in zip(accuracy, cards, strict=True)
    ]
    inter = [value for _, value in pairs if value is not None]
    return Result(
        **{key: task[key] for key in ("method", "profile", "scenario", "public", "seed", "settings", "precision")},
        rounds=len([event for event in events if event["round"] >= 0]),
        clients=[{key: card.get(key) for key in ("name", "model", "train", "test")} for card in cards],
        tests=tests,
        accuracy=accuracy,
        intra=[value for value, _ in pairs],
        inter=inter,
        intra_avg=sum(value for value, _ in pairs) / len(pairs),
        inter_avg=sum(inter) / len(inter) if inter else None,
        bytes_up=_total(events, "bytes_up"),
        bytes_down=_total(events, "bytes_down"),
        messages=_total(events, "messages"),
        seconds={"total": sum(float(event.get("seconds", {}).get("total", 0)) for event in events)},
        notes=["this run is not finished"],
        versions=versions(),
        device="",
    )


def homes(result: Result, task: dict[str, Any]) -> tuple[int | None, ...]:
    """The column of each client's own test set; None where there is no such column (label skew)."""
    if len(result.tests) < 2:
        return (None,) * len(result.clients)
    named = {card.get("name"): card.get("home") for card in task.get("clients", []) if isinstance(card, dict)}
    places: list[int | None] = []
    for number, client in enumerate(result.clients):
        home = client.get("home") or named.get(client["name"]) or client["name"]
        if home in result.tests:
            places.append(result.tests.index(home))
        else:
            places.append(number if len(result.tests) == len(result.clients) > 1 else None)
    return tuple(places)


def run_data(run: Run, name: str, *, matrices: int) -> dict[str, Any]:
    """One run as JSON values for the page; ``matrices`` bounds how many rounds keep their accuracy matrix."""
    result, events = run.result, run.events
    kept = set(thin([i for i, event in enumerate(events) if event.get("accuracy")], matrices))
    names = [client["name"] for client in result.clients]
    return {
        "name": name, "method": result.method, "profile": result.profile, "scenario": result.scenario,
        "public": result.public, "seed": result.seed, "finished": run.finished, "planned": run.planned,
        "clients": result.clients, "tests": result.tests, "homes": run.homes,
        "rounds": [event["round"] + 1 for event in events],
        "intra": [tidy(event.get("intra_avg"), 6) for event in events],
        "inter": [tidy(event.get("inter_avg"), 6) for event in events],
        "accuracy": [_matrix(event["accuracy"]) if i in kept else None for i, event in enumerate(events)],
        "own": [[tidy(value) for value in event["own"]] if event.get("own") else None for event in events],
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


def _matrix(rows: Iterable[Iterable[float]]) -> list[list[float | None]]:
    return [[None if tidy(value) is None else round(value, 2) for value in row] for row in rows]


def _words(out: Any) -> dict[str, str]:
    told = out if isinstance(out, dict) else {}
    return {key: str(told.get(key, "")) for key in ("client", "exchange", "why")}


def _total(events: Sequence[Event], key: str) -> int:
    return sum(int(event.get(key, 0)) for event in events)


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
