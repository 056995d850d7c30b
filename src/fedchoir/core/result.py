"""What a run leaves behind: ``result.json``, and the event of every round."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from fedchoir.core.evaluation import intra_inter, last_rounds_mean
from fedchoir.core.federation_spec import FederationSpec
from fedchoir.utils.errors import QuorumError, UsageError
from fedchoir.version import __version__

Event = dict[str, Any]
"""One line of ``events.jsonl``."""


class Result(BaseModel):
    """The outcome of a run. Accuracies are percent, the mean of the last three evaluated rounds."""

    model_config = ConfigDict(frozen=True, extra="allow")

    method: str
    profile: str
    scenario: str
    public: str | None
    seed: int
    rounds: int
    clients: list[dict[str, Any]]
    tests: list[str]
    accuracy: list[list[float]]
    intra: list[float]
    inter: list[float]
    intra_avg: float
    inter_avg: float | None
    own: list[float | None] = []  # under label skew: each client's accuracy on its own share of the tests
    bytes_up: int
    bytes_down: int
    messages: int
    seconds: dict[str, float]
    settings: dict[str, Any]
    notes: list[str]
    versions: dict[str, str]
    device: str
    precision: str


def summarise(task: FederationSpec, tests: Sequence[str], events: Sequence[Event], facts: dict[str, Any]) -> Result:
    """The result of the rounds played so far."""
    accuracy = last_rounds_mean([event["accuracy"] for event in events if event["accuracy"] is not None])
    task, accuracy, facts = _received_only(task, accuracy, facts)
    intra, inter = split_rows(accuracy, task, tests)
    seconds = {key: sum(event["seconds"][key] for event in events) for key in events[-1]["seconds"]}
    return Result(
        **facts,
        rounds=len([event for event in events if event["round"] >= 0]),
        clients=[{"name": c.name, "model": c.model, "train": c.train, "test": c.test} for c in task.clients],
        tests=list(tests),
        accuracy=accuracy,
        intra=intra,
        inter=inter,
        intra_avg=sum(intra) / len(intra),
        inter_avg=sum(inter) / len(inter) if inter else None,
        own=own_mean(events),
        bytes_up=sum(event["bytes_up"] for event in events),
        bytes_down=sum(event["bytes_down"] for event in events),
        messages=sum(event["messages"] for event in events),
        seconds=seconds,
        versions=versions(),
    )


def _received_only(
    task: FederationSpec, accuracy: list[list[float]], facts: dict[str, Any]
) -> tuple[FederationSpec, list[list[float]], dict[str, Any]]:
    """Leave out, with a note, clients that could never be asked for an accuracy."""
    silent = [card.name for card, row in zip(task.clients, accuracy, strict=True) if not row]
    if not silent:
        return task, accuracy, facts
    if len(silent) == len(accuracy):
        raise QuorumError(f"no client could be asked for its accuracy ({', '.join(silent)})")
    received = tuple(card for card, row in zip(task.clients, accuracy, strict=True) if row)
    notes = [
        *facts["notes"],
        *(f"{name}: never evaluated in the last rounds, so not in this result" for name in silent),
    ]
    return replace(task, clients=received), [row for row in accuracy if row], {**facts, "notes": notes}


def split_rows(
    accuracy: Sequence[Sequence[float] | None], task: FederationSpec, tests: Sequence[str]
) -> tuple[list[float], list[float]]:
    """Each client's accuracy at home and its mean elsewhere (empty under label skew, where there is no elsewhere)."""
    pairs = [
        intra_inter(row, list(tests).index(card.domain) if card.domain in tests else None)
        for row, card in zip(accuracy, task.clients, strict=True)
        if row is not None
    ]
    return [intra for intra, _ in pairs], [inter for _, inter in pairs if inter is not None]


def own_mean(events: Sequence[Event], last: int = 3) -> list[float | None]:
    """Each client's accuracy on its own share of the tests, the mean of the last rounds that have one."""
    columns = zip(*[event["own"] for event in events if "own" in event][-last:], strict=True)
    received = [[value for value in column if value is not None] for column in columns]
    return [sum(values) / len(values) if values else None for values in received]


def versions() -> dict[str, str]:
    """What a number depends on beside its settings."""
    found = {"fedchoir": __version__, "python": platform.python_version()}
    for package in ("torch", "torchvision", "timm", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    return found


def load_result(folder: Path) -> Result:
    """The result of a finished run."""
    path = folder / "result.json" if folder.is_dir() else folder
    try:
        return Result(**json.loads(path.read_text()))
    except FileNotFoundError:
        raise UsageError(f"there is no {path}: is the run finished? (--resume continues it)") from None
    except (json.JSONDecodeError, TypeError, ValueError) as error:
        raise UsageError(f"{path} is not a result: {str(error).splitlines()[0]}") from None


def read_events(path: Path) -> list[Event]:
    """The whole lines of an event file; a line that was being written when the process died is left out."""
    events = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            events.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return events
