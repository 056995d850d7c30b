"""Results side by side, in the terminal or for a paper: accuracies, every client, or what it cost.

A view makes a `Sheet` of each group of rows that can be compared. A CSV is for machines: one line a row, all numbers.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from rich.table import Table

from fedchoir.experiments.published import Match
from fedchoir.reporting.costs import Cost, cost_of
from fedchoir.reporting.render import NONE, Cell, Sheet, latex, markdown, terminal
from fedchoir.reporting.run_groups import Number, Row, alone, find_results, grouped, over_seeds, rows
from fedchoir.utils.sizes import readable_bytes

__all__ = [
    "Number", "Row", "as_text", "find_results", "grouped", "over_seeds", "rows", "terminal_tables",
]  # fmt: skip

View = Literal["accuracy", "clients", "cost"]
METRICS = ("intra", "inter")


def sheets(table_rows: Sequence[Row], view: View = "accuracy", target: float | None = None) -> list[Sheet]:
    """The sheets of a view, one or two for each group. ``target`` adds the rounds that it took to reach an accuracy."""
    made: list[Sheet] = []
    for group, members in grouped(table_rows):
        if view == "accuracy":
            made.append(accuracy_sheet(group, members, target))
        elif view == "clients":
            made += [client_sheet(group, members, metric) for metric in METRICS if members[0].clients(metric)]
        else:
            made.append(cost_sheet(group, members))
    return made


# -- accuracies --------------------------------------------------------------------------------------------------------


def accuracy_sheet(group: str, members: Sequence[Row], target: float | None = None) -> Sheet:
    """Method by method: intra and inter, each with Δ to solo and the paper's number; rounds to a target, cost."""
    columns: list[tuple[str, list[Cell]]] = [("method", [Cell(row.label) for row in members])]
    columns.append(("seeds", [Cell(str(len(row.results))) for row in members]))
    for metric in METRICS:
        if any(row.number(metric) for row in members):
            columns += _metric_columns(members, metric)
    columns += _rounds_columns(members, target)
    columns.append(("bytes / round", [Cell(readable_bytes(row.bytes_per_round)) for row in members]))
    columns.append(("seconds", [Cell(f"{row.seconds:.1f}") for row in members]))
    lines = zip(*(cells for _, cells in columns), strict=True)
    return Sheet(group, tuple(name for name, _ in columns), tuple(lines), _notes(members))


def _metric_columns(members: Sequence[Row], metric: str) -> list[tuple[str, list[Cell]]]:
    name = metric if any(row.inter for row in members) else "accuracy"
    places = ranks(members, metric)
    made = [(f"{name} %", [Cell(_text(row.number(metric)), places.get(id(row))) for row in members])]
    if any(row.method == "solo" for row in members) and len(members) > 1:
        made.append(("Δ solo", [Cell(_signed(delta(members, row, metric))) for row in members]))
    if any(metric in row.published.printed for row in members):
        made.append(("paper (ours −)", [Cell(_paper(row, metric)) for row in members]))
    return made


def delta(members: Sequence[Row], row: Row, metric: str) -> float | None:
    """How much better than every client alone."""
    solo = reference.number(metric) if (reference := alone(members)) else None
    own = row.number(metric)
    return None if solo is None or own is None or row.method == "solo" else own.mean - solo.mean


def _paper(row: Row, metric: str) -> str:
    printed = row.published.printed.get(metric)
    own = row.number(metric)
    if printed is None or own is None:
        return NONE
    text = Number(printed.value, printed.sd).text()
    return text if row.published.other_data else f"{text} ({own.mean - printed.value:+.2f})"


def _rounds_columns(members: Sequence[Row], target: float | None) -> list[tuple[str, list[Cell]]]:
    """Rounds to the target asked for, or where none is to those for which a paper prints rounds."""
    printed = [row.published.printed.get("rounds") for row in members]
    targets = [target if target is not None else p.target if p else None for p in printed]
    if all(t is None for t in targets):
        return []
    cells = []
    for row, goal, theirs in zip(members, targets, printed, strict=True):
        reached = None if goal is None else row.rounds_to(goal)
        own = NONE if goal is None else f"{'not' if reached is None else f'{reached:g}'} to {goal:g} %"
        same = theirs is not None and theirs.target == goal
        cells.append(Cell(f"{own} (paper {theirs.value:g})" if theirs is not None and same else own))
    return [("rounds", cells)]


def _notes(members: Sequence[Row]) -> tuple[str, ...]:
    """Where the papers' numbers come from, in what our runs are not theirs, and what is to be known of the data."""
    matched = [(row.label, row.published) for row in members if row.published]
    ours = [(label, match) for label, match in matched if not match.other_data]
    lines = [f"paper: {where}"] if (where := _tables(match for _, match in ours)) else []
    if elsewhere := [match for _, match in matched if match.other_data]:
        scenarios = ", ".join(dict.fromkeys(n.scenario for match in elsewhere for n in match.printed.values()))
        lines.append(f"paper: {_tables(elsewhere)} on {scenarios}, other data than ours: for orientation only")
    lines += _differences([(label, match.notes) for label, match in ours])
    doubted = [n for _, match in matched for n in match.printed.values() if n.doubt]
    lines += dict.fromkeys(f"{n.table}, {n.label} {n.metric}: {n.doubt}" for n in doubted)
    said = dict.fromkeys(note for row in members for result in row.results for note in result.notes)
    return (*lines, f"data: {'; '.join(said)}") if said else tuple(lines)


def _tables(matches: Iterable[Match]) -> str:
    return ", ".join(dict.fromkeys(n.table for match in matches for n in match.printed.values()))


def _differences(told: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """In what rows are not the paper's: once what holds for all of them, then by name what holds for some."""
    shared = [note for note in (told[0][1] if told else ()) if all(note in notes for _, notes in told)]
    found = {"; ".join(shared): ["all rows"]} if shared else {}
    for label, notes in told:
        if rest := [note for note in notes if note not in shared]:
            found.setdefault("; ".join(rest), []).append(label)
    return [f"not as in the paper (its own in brackets), {' · '.join(who)}: {note}" for note, who in found.items()]


def ranks(members: Sequence[Row], metric: str) -> dict[int, int]:
    """Place of each row in a column of accuracies, by id; nothing for a single row."""
    having = [(row, number.mean) for row in members if (number := row.number(metric)) is not None]
    ordered = sorted(having, key=lambda pair: -pair[1])
    return {id(row): place for place, (row, _) in enumerate(ordered)} if len(members) > 1 else {}


# -- every client ------------------------------------------------------------------------------------------------------


def client_sheet(group: str, members: Sequence[Row], metric: str) -> Sheet:
    """As the papers print it: a column a client and the average; the paper's line under ours."""
    clients = [client["name"] for client in members[0].results[0].clients]
    arrow = " →" if metric == "inter" else ""
    header = ("method", *(f"{name}{arrow}" for name in clients), "average", "Δ solo")
    columns = [[n.mean for n in row.clients(metric)] for row in members]
    lines: list[tuple[Cell, ...]] = []
    for row in members:
        own = row.clients(metric)
        cells = [
            Cell(number.text(), _place(number.mean, [c[k] for c in columns if len(c) == len(clients)]))
            for k, number in enumerate(own)
        ] or [Cell(NONE)] * len(clients)
        average = Cell(_text(row.number(metric)), ranks(members, metric).get(id(row)))
        lines.append((Cell(row.label), *cells, average, Cell(_signed(delta(members, row, metric)))))
        if (printed := row.published.printed.get(metric)) is not None:
            theirs = printed.clients if len(printed.clients) == len(clients) else (float("nan"),) * len(clients)
            shown = [Cell(NONE if v != v else f"{v:.2f}") for v in theirs]
            gap = "" if row.published.other_data else f"ours {_signed(_gap(row, metric))}"
            lines.append((Cell(f"  {printed.table}"), *shown, Cell(f"{printed.value:.2f}"), Cell(gap)))
    return Sheet(f"{group} · {metric}", header, tuple(lines), _notes(members))


def _gap(row: Row, metric: str) -> float | None:
    own = row.number(metric)
    return None if own is None else own.mean - row.published.printed[metric].value


def _place(value: float, column: Sequence[float]) -> int | None:
    return sorted(column, reverse=True).index(value) if len(column) > 1 else None


# -- what it cost ------------------------------------------------------------------------------------------------------


def cost_sheet(group: str, members: Sequence[Row]) -> Sheet:
    """Measured: bytes, models held, seconds of each phase, and what that is more than the leanest row of the group."""
    costs = [cost_of(row) for row in members]
    lean = min(costs, key=lambda cost: cost.seconds["total"])
    header = ("method", "up", "down", "msgs", "models", "public s", "local s", "test s", "total s", "added s")
    lines = tuple(
        tuple(map(Cell, (row.label, *_cost_cells(cost, lean)))) for row, cost in zip(members, costs, strict=True)
    )
    notes = (
        "up, down: bytes of one client in a round; msgs (messages) and seconds: of all clients in a round",
        "models: what a client keeps between rounds, its own model included, in sizes of its model",
    )
    return Sheet(f"{group} · cost", header, lines, notes)


def _cost_cells(cost: Cost, lean: Cost) -> tuple[str, ...]:
    phases = (f"{cost.seconds.get(name, 0.0):.2f}" for name in ("public", "local", "evaluate", "total"))
    copies = NONE if cost.copies is None else f"{cost.copies:.2f}"
    return (
        readable_bytes(cost.up), readable_bytes(cost.down), f"{cost.messages:g}", copies, *phases,
        f"{cost.seconds['total'] - lean.seconds['total']:+.2f}",
    )  # fmt: skip


def _text(number: Number | None) -> str:
    return NONE if number is None else number.text()


def _signed(value: float | None) -> str:
    return NONE if value is None else f"{value:+.2f}"


# -- writing -----------------------------------------------------------------------------------------------------------


def terminal_tables(table_rows: Sequence[Row], view: View = "accuracy", target: float | None = None) -> list[Table]:
    """One rich table for each sheet of a view."""
    return [terminal(sheet) for sheet in sheets(table_rows, view, target)]


def as_text(table_rows: Sequence[Row], style: str, view: View = "accuracy", target: float | None = None) -> str:
    """The sheets of a view as ``md`` or ``latex``; or ``csv``, with the clients' columns where the view has them."""
    if style != "csv":
        return "\n".join((markdown if style == "md" else latex)(sheet) for sheet in sheets(table_rows, view, target))
    records = [record(row, members, view, target) for _, members in grouped(table_rows) for row in members]
    buffer = io.StringIO()
    header = list(dict.fromkeys(name for line in records for name in line))
    writer = csv.DictWriter(buffer, header, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return buffer.getvalue()


def record(row: Row, members: Sequence[Row], view: View = "accuracy", target: float | None = None) -> dict[str, Any]:
    """All numbers of a row by name; names of what is not there are left out."""
    first = row.results[0]
    facts: dict[str, Any] = {
        "setting": row.group, "label": row.label, "method": row.method, "profile": first.profile,
        "public": first.public, "seeds": len(row.results),
    }  # fmt: skip
    for metric in METRICS:
        own, printed = row.number(metric), row.published.printed.get(metric)
        if own is None:
            continue
        facts |= {metric: own.mean, f"{metric}_sd": own.sd, f"{metric}_minus_solo": delta(members, row, metric)}
        if printed is not None:
            facts |= {f"{metric}_paper": printed.value, f"{metric}_paper_table": printed.table}
            facts[f"{metric}_minus_paper"] = None if row.published.other_data else own.mean - printed.value
        if view == "clients":
            names = [client["name"] for client in first.clients]
            facts |= {f"{metric}_{k}": n.mean for k, n in zip(names, row.clients(metric), strict=False)}
    if target is not None:
        facts[f"rounds_to_{target:g}"] = row.rounds_to(target)
    cost = cost_of(row)
    facts |= {"bytes_up": cost.up, "bytes_down": cost.down, "messages": cost.messages, "models_held": cost.copies}
    return facts | {f"seconds_{name}": value for name, value in cost.seconds.items()}
