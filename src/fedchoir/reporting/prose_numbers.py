"""Numbers in the prose of a results page: ``{{inter|choir|fccl+}}`` is found in the kept runs, not typed.

    {{what|rows|less|how}}

what   ``intra`` or ``inter``, the average over clients; a client's name, its accuracy at home; ``mnist>svhn``, what the
       client mnist has on the test images of svhn; ``mnist>*``, its mean on those of all others. Of the last three
       evaluated rounds as everywhere, or ``@20``: of round 20; ``@best``: of the best evaluated round of each run;
       ``@fall``: from that to the last three. ``loss:mnist@20`` is the client's private loss in round 20, ``@20+`` the
       greatest from there on, ``@least`` the least of all rounds.
rows   the label of a row, of several with a semicolon between, or ``*`` for all; ``solo [resnet18]`` where there are
       several of that name: the one in whose table's heading it stands. ``fccl+ (paper)`` is what the paper prints;
       ``digits-lite/solo`` is a row of another section.
less   a row that is taken off, seed by seed.
how    ``seeds``: the least and the greatest of the seeds instead of their mean; ``sd``: their standard deviation;
       ``most``, ``least``: one end alone, rounded away from the others; ``spread``: how far the ends are apart;
       ``signed``: with a plus where there is no minus; ``0`` or ``2``: so many decimals instead of one.

``less`` and ``how`` may be left out, and there may be several of ``how``.
Several numbers are shown by the least and the greatest, as "1.2 to 3.4", unless they are the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import ceil, floor
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fedchoir.core.result import Result, read_events
from fedchoir.reporting.run_groups import Row, evaluated, extra, find_results, rows
from fedchoir.utils.errors import UsageError

HOW = re.compile(r"seeds|sd|most|least|spread|signed|\d")
SUMMARY = "summary.md"
MINUS = "\u2212"
LOSS = "loss:"

Of = dict[int, float]
"""A number for each seed."""


class Sections:
    """The rows of all sections, by the name of their folder; each is read once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[str, list[Row]] = {}

    def rows(self, section: str) -> list[Row]:
        if section not in self._known:
            self._known[section] = rows(find_results([self._root / section / "runs"]))
        return self._known[section]

    def row(self, section: str, name: str) -> Row:
        label, _, setting = name.removesuffix("]").partition(" [")
        found = [row for row in self.rows(section) if row.label == label and setting in row.group]
        if len(found) != 1:
            known = ", ".join(row.label for row in self.rows(section))
            raise UsageError(f"{len(found) or 'no'} rows are called {name!r} in {section}, which has {known}")
        return found[0]


def fill(text: str, sections: Sections, section: str = "") -> str:
    """A reading with its numbers in place; outside of a section every row is asked for with its own."""

    def number(found: re.Match[str]) -> str:
        try:
            return _number(found[1], sections, section)
        except (UsageError, ValueError, KeyError) as error:
            source = f"{section}/about.toml" if section else SUMMARY
            raise UsageError(f"{source}: {{{{{found[1]}}}}}: {error}") from None

    return re.sub(r"\{\{(.+?)\}\}", number, text)


def _number(wish: str, sections: Sections, section: str) -> str:
    parts = [part.strip() for part in wish.split("|")]
    if len(parts) < 2:
        raise UsageError("wanted: what|rows, and less|how where needed")
    what, names, *rest = parts
    how = {part for part in rest if HOW.fullmatch(part)}
    less = [part for part in rest if part not in how]
    if len(less) > 1:
        raise UsageError(f"{', '.join(less)} are two rows to take off; wanted one at most")
    labels = [row.label for row in sections.rows(section)] if names == "*" else re.split(r"\s*;\s*", names)
    values: list[float] = []
    for label in labels:
        seeds = _minus(_values(what, label, sections, section), *(_values(what, n, sections, section) for n in less))
        values += seeds if "seeds" in how else [stdev(seeds) if "sd" in how else mean(seeds)]
    decimals = next((int(part) for part in how if part.isdigit()), 1)
    unit = 10.0**-decimals
    if "most" in how:
        values = [ceil(max(values) / unit) * unit]
    elif "least" in how:
        values = [floor(min(values) / unit) * unit]
    elif "spread" in how:
        values = [max(values) - min(values)]
    shown = [_text(value, decimals, "signed" in how) for value in (min(values), max(values))]
    return shown[0] if shown[0] == shown[1] else f"{shown[0]} to {shown[1]}"


def _text(value: float, decimals: int, signed: bool) -> str:
    shown = round(value, decimals) + 0.0  # no minus before a zero
    return f"{shown:{'+' if signed else ''}.{decimals}f}".replace("-", MINUS)


def _minus(one: Of | float, two: Of | float = 0.0) -> list[float]:
    if isinstance(one, float):
        return [one - two] if isinstance(two, float) else [one - value for value in two.values()]
    if isinstance(two, float):
        return [value - two for value in one.values()]
    if one.keys() != two.keys():
        raise UsageError(f"one row has the seeds {sorted(one)}, the other {sorted(two)}")
    return [value - two[seed] for seed, value in one.items()]


def _values(what: str, name: str, sections: Sections, section: str) -> Of | float:
    elsewhere, _, label = name.rpartition("/")
    label, of_paper = label.removesuffix(" (paper)"), label.endswith(" (paper)")
    row = sections.row(elsewhere or section, label)
    metric, _, when = what.partition("@")
    if of_paper:
        return _printed(metric, row)
    return {result.seed: _at(result, metric, when) for result in row.results}


def _printed(what: str, row: Row) -> float:
    """A client's number, at home or on all others, is that of its place among the columns."""
    client, _, test = what.partition(">")
    if test not in ("", "*"):
        raise UsageError(f"papers print no {what}")
    metric = what if what in ("intra", "inter") else "inter" if test else "intra"
    if (number := row.published.printed.get(metric)) is None:
        raise UsageError(f"no paper prints {metric} of {row.label}")
    if what == metric:
        return number.value
    return number.clients[[told["name"] for told in row.results[0].clients].index(client)]


def _at(result: Result, metric: str, when: str) -> float:
    """The number of one run: of its end, of a round, or over its rounds."""
    if not when and metric.startswith(LOSS):
        raise UsageError(f"{metric}: say of which round, as in {metric}@20")
    if not when:
        return _read(result, metric, result.model_dump(include={"accuracy", "intra_avg", "inter_avg"}))
    course = _course(result, metric)
    if when == "fall":
        return max(course.values()) - _at(result, metric, "")
    if when in ("best", "least"):
        return (max if when == "best" else min)(course.values())
    if when.endswith("+"):
        return max(value for number, value in course.items() if number >= int(when[:-1]))
    if int(when) not in course:
        raise UsageError(f"no accuracy of round {when} is kept; there are {', '.join(map(str, course))}")
    return course[int(when)]


def _course(result: Result, metric: str) -> dict[int, float]:
    """By the number of the round, from 1."""
    if metric.startswith(LOSS):
        client = metric.removeprefix(LOSS)
        events = read_events(Path(str(extra(result, "folder"))) / "events.jsonl")
        return {e["round"] + 1: e["losses"][client]["local_loss"] for e in events if e["round"] >= 0}
    return {event["round"] + 1: _read(result, metric, event) for event in evaluated(result)}


def _read(result: Result, metric: str, scores: Mapping[str, Any]) -> float:
    """One number of a result, or of the event of a round."""
    if metric in ("intra", "inter"):
        return float(scores[f"{metric}_avg"])
    client, _, test = metric.partition(">")
    names = [told["name"] for told in result.clients]
    if client not in names:
        raise UsageError(f"there is no client {client!r}; there are {', '.join(names)}")
    row, home = scores["accuracy"][names.index(client)], test or client
    if test == "*":
        return mean(value for name, value in zip(result.tests, row, strict=True) if name != client)
    return float(row[result.tests.index(home)] if home in result.tests else mean(row))
