"""What the habit of reporting the best test round is worth: beside our result, the mean of the last three rounds."""

from collections.abc import Sequence
from statistics import mean
from typing import Any, NamedTuple

from fedchoir.core.metrics import METRICS
from fedchoir.core.result import Event, Result
from fedchoir.reporting.headline import ALL_SCOPES, heading, score_of
from fedchoir.reporting.render import NONE, Cell, Sheet
from fedchoir.reporting.run_groups import Number, Row, over_seeds
from fedchoir.reporting.store import events_of

NOTES = (
    "score: our result, the mean of the last three evaluated rounds; worth: the best test round minus it",
    "The best test round is not a valid result: the test samples chose it, so its score is too good for new samples.",
)


class Habit(NamedTuple):
    """Over seeds: the last three rounds, each seed's best test round, and what that choice is worth."""

    ours: Number
    best: Number
    worth: Number


def best_test_round(result: Result, metric: str, scope: str) -> float | None:
    """The best score of a run in any evaluated round; None where its events are not kept or have no such metric."""
    found = [score for event in events_of(result) if (score := _score(event, metric, scope)) is not None]
    return (max if METRICS[metric].larger_is_better else min)(found, default=None)


def _score(event: Event, metric: str, scope: str) -> float | None:
    found = event if metric == "accuracy" else event.get("headline") or {}
    score: float | None = found.get(f"{scope}_avg") if found.get("metric", metric) == metric else None
    return score


def habit_of(row: Row, scope: str) -> Habit | None:
    """The habit's effect on a row; None where one of its runs has no rounds or no such score."""
    pairs = [(score_of(r, row.metric, scope), best_test_round(r, row.metric, scope)) for r in row.results]
    known = [(ours, best) for ours, best in pairs if ours is not None and best is not None]
    if len(known) < len(pairs):
        return None
    ours, best = zip(*known, strict=True)
    worth = [b - a for a, b in known]
    return Habit(*(over_seeds(values, row.digits) for values in (ours, best, worth)))


def habit_sheet(group: str, group_rows: Sequence[Row]) -> Sheet:
    """One line per method and, of each scope, our result, the best test round and the difference."""
    columns: list[tuple[str, list[str]]] = [
        ("method", [row.label for row in group_rows]),
        ("seeds", [str(len(row.results)) for row in group_rows]),
    ]
    notes: tuple[str, ...] = NOTES
    averages: list[str] = []
    domains = any(row.number("inter") for row in group_rows)
    for scope in ALL_SCOPES:
        if not any(row.number(scope) for row in group_rows):
            continue
        found = [habit_of(row, scope) for row in group_rows]
        ours = [str(row.number(scope) or NONE) for row in group_rows]
        columns.append((heading(group_rows[0].metric, scope if domains else ""), ours))
        columns.append(("best round", [str(each.best) if each else NONE for each in found]))
        columns.append(("worth", [_signed(each.worth) if each else NONE for each in found]))
        if known := [each.worth.mean for each in found if each]:
            averages.append(f"{mean(known):+.{group_rows[0].digits}f} ({scope})")
        if None in found:
            missing = ", ".join(row.label for row, each in zip(group_rows, found, strict=True) if each is None)
            notes = (*notes, f"{scope}: no rounds are kept of {missing} (events.jsonl)")
    if averages:
        notes = (*notes, f"worth of the habit, mean over the rows: {', '.join(averages)}")
    header, cells = zip(*columns, strict=True)
    lines = tuple(tuple(map(Cell, line)) for line in zip(*cells, strict=True))
    return Sheet(f"{group} · best test round", header, lines, notes)


def _signed(number: Number) -> str:
    return str(number) if number.mean < 0 else f"+{number}"


def habit_fields(row: Row) -> dict[str, Any]:
    """The same by name, for CSV."""
    facts: dict[str, Any] = {}
    for scope in ALL_SCOPES:
        if found := habit_of(row, scope):
            facts |= {
                f"{scope}_best_round": found.best.mean, f"{scope}_best_round_worth": found.worth.mean,
                f"{scope}_best_round_worth_sd": found.worth.sd,
            }  # fmt: skip
    return facts
