"""Rounds, and bytes, until a target accuracy is reached (FedCT Tables IV and VI)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedchoir.core.result import Event, load_result, read_events
from fedchoir.utils.errors import UsageError


@dataclass(frozen=True)
class Reached:
    """When a run first reached the target; ``rounds`` and ``gigabytes`` are None if it never did."""

    method: str
    seed: int
    target: float
    rounds: int | None
    gigabytes: float | None
    best: float


def rounds_to_target(events: Sequence[Event], target: float) -> int | None:
    """How many rounds had been played when the mean accuracy was first at ``target`` percent or above; None if never.

    Only evaluated rounds count (``evaluate_every``), so the answer may be late by as many rounds as lie between.

    >>> events = [{"round": 0, "intra_avg": 40.0}, {"round": 1, "intra_avg": None}, {"round": 2, "intra_avg": 55.0}]
    >>> rounds_to_target(events, 50), rounds_to_target(events, 60)
    (3, None)
    """
    scored = (event for event in events if event["intra_avg"] is not None)
    return next((event["round"] + 1 for event in scored if event["intra_avg"] >= target), None)


def race(folders: Iterable[Path], target: float) -> list[Reached]:
    """For each finished run: the rounds and the gigabytes, both ways, that it took to the target."""
    results = []
    for folder in folders:
        result, events = load_result(folder), read_events(folder / "events.jsonl")
        scored = [event["intra_avg"] for event in events if event["intra_avg"] is not None]
        if not scored:
            raise UsageError(f"{folder}/events.jsonl has no accuracies")
        rounds = rounds_to_target(events, target)
        sent = sum(e["bytes_up"] + e["bytes_down"] for e in events if rounds is not None and e["round"] < rounds)
        gigabytes = None if rounds is None else sent / 1e9
        results.append(Reached(result.method, result.seed, target, rounds, gigabytes, max(scored)))
    return results
