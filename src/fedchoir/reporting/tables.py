"""Tables of finished runs: scores and differences, scores of each client, cost, best test rounds or unseen domains; for
the terminal, Markdown, LaTeX, CSV."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from rich.table import Table

from fedchoir.core.metrics import METRICS
from fedchoir.experiments.published import Match, Unit
from fedchoir.reporting.best_round import habit_fields, habit_sheet
from fedchoir.reporting.costs import budget_of, budget_sheet, cost_of
from fedchoir.reporting.difference_tables import difference_fields, difference_sheets
from fedchoir.reporting.headline import SCOPES, heading
from fedchoir.reporting.held_out import held_out_sheets
from fedchoir.reporting.render import NONE, Cell, Sheet, latex, markdown, ranked, terminal
from fedchoir.reporting.run_groups import Number, Row, delta, grouped, interactions, rows
from fedchoir.reporting.store import find_results
from fedchoir.utils.sizes import readable_bytes

__all__ = ["as_text", "find_results", "notes", "rows", "sheets", "terminal_tables"]

View = Literal["accuracy", "clients", "cost", "best-round", "held-out"]
References = Mapping[str, Row]
"""The row of each group that the others are compared with, see `difference_tables.references`."""
NO_REFERENCE = "no differences: this table has no solo row; --against LABEL compares with another one"
WORST_NOTE = "worst, spread: the worst client on its own test data, and the standard deviation over the clients"
INTERACTIONS_NOTE = "interactions: rounds with their exchanges of models, each of which counts like an averaging"
Columns = list[tuple[str, Sequence[Cell]]]


def terminal_tables(
    table_rows: Sequence[Row],
    view: View = "accuracy",
    target: float | None = None,
    references: References | None = None,
) -> list[Table]:
    """The sheets of a view as rich tables."""
    return [terminal(sheet) for sheet in sheets(table_rows, view, target, references)]


def as_text(
    table_rows: Sequence[Row],
    style: str,
    view: View = "accuracy",
    target: float | None = None,
    references: References | None = None,
) -> str:
    """The sheets of a view as ``md`` or ``latex``, or all numbers of the rows as ``csv``."""
    if style != "csv":
        write = {"md": markdown, "latex": latex}[style]
        return "\n".join(write(sheet) for sheet in sheets(table_rows, view, target, references))
    records = [
        record(row, group_rows, view, target) | difference_fields(row, (references or {}).get(group))
        for group, group_rows in grouped(table_rows)
        for row in group_rows
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, dict.fromkeys(name for line in records for name in line), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def sheets(
    table_rows: Sequence[Row],
    view: View = "accuracy",
    target: float | None = None,
    references: References | None = None,
) -> list[Sheet]:
    """The tables of a view, one to three per group. ``target`` adds the rounds needed to reach an accuracy,
    ``references`` the differences to a row."""
    if view == "held-out":
        return held_out_sheets(table_rows)
    made: list[Sheet] = []
    for group, group_rows in grouped(table_rows):
        if view == "accuracy":
            made += accuracy_sheets(group, group_rows, target, references)
        elif view == "clients":
            made += [client_sheet(group, group_rows, scope) for scope in SCOPES if group_rows[0].clients(scope)]
        elif view == "cost":
            made += [cost_sheet(group, group_rows), budget_sheet(group, group_rows)]
        else:
            made.append(habit_sheet(group, group_rows))
    return made


def accuracy_sheets(
    group: str, group_rows: Sequence[Row], target: float | None, references: References | None
) -> list[Sheet]:
    """The scores and, where references are given, the differences of each scope."""
    sheet = accuracy_sheet(group, group_rows, target)
    if references is None or len(group_rows) < 2:
        return [sheet]
    if group not in references:
        return [sheet._replace(notes=(*sheet.notes, NO_REFERENCE))]
    return [sheet, *difference_sheets(group, group_rows, references[group])]


def accuracy_sheet(group: str, group_rows: Sequence[Row], target: float | None = None) -> Sheet:
    """One line per method: intra and inter scores with Δ to solo and the paper's number, or without a paper the worst
    client and the spread over clients; rounds to a target; cost."""
    columns: Columns = [
        ("method", [Cell(row.label) for row in group_rows]),
        ("seeds", [Cell(str(len(row.results))) for row in group_rows]),
    ]
    single = not any(row.number("inter") for row in group_rows)
    metric = group_rows[0].metric
    better = METRICS[metric].better
    unseen = ("unseen",) if any(row.number("unseen") for row in group_rows) else ()
    for scope in (*(SCOPES[:1] if single else SCOPES), *unseen):
        name = heading(metric, "" if single else scope)
        columns.append((name, ranked([row.number(scope) for row in group_rows], better)))
        if any(row.method == "solo" for row in group_rows) and len(group_rows) > 1:
            columns.append(("Δ solo", [Cell(_delta(row, group_rows, scope)) for row in group_rows]))
        if any(scope in row.published.printed for row in group_rows):
            columns.append(("paper (ours −)", [Cell(_paper(row, scope)) for row in group_rows]))
    remarks = notes(group_rows)
    if any(row.worst() for row in group_rows) and not any(row.published for row in group_rows):
        remarks = (WORST_NOTE, *remarks)
        columns.append(("worst", ranked([row.worst() for row in group_rows], better)))
        columns.append(("spread", [Cell(str(row.spread() or NONE)) for row in group_rows]))
    goals = [_target(row) if target is None else target for row in group_rows]
    if any(goal is not None for goal in goals):
        columns.append(("rounds", [Cell(_rounds(row, goal)) for row, goal in zip(group_rows, goals, strict=True)]))
        if any(interactions(row.results[0]) > 1 or _paper_unit(row) == "interactions" for row in group_rows):
            counts = [_rounds(row, goal, "interactions") for row, goal in zip(group_rows, goals, strict=True)]
            columns.append(("interactions", [Cell(count) for count in counts]))
            remarks = (*remarks, INTERACTIONS_NOTE)
    columns.append(("bytes / round", [Cell(readable_bytes(row.bytes_per_round)) for row in group_rows]))
    columns.append(("seconds", [Cell(f"{row.seconds:.1f}") for row in group_rows]))
    header, cells = zip(*columns, strict=True)
    return Sheet(group, header, tuple(zip(*cells, strict=True)), remarks)


def client_sheet(group: str, group_rows: Sequence[Row], scope: str) -> Sheet:
    """One column per client and the average, as papers print it; the paper's own line follows ours."""
    names = [client["name"] for client in group_rows[0].results[0].clients]
    arrow = " →" if scope == "inter" else ""
    missing: list[Number | None] = [None] * len(names)
    numbers = [[*(row.clients(scope) or missing), row.number(scope)] for row in group_rows]
    metric = group_rows[0].metric
    columns = [ranked(column, METRICS[metric].better) for column in zip(*numbers, strict=True)]
    lines: list[tuple[Cell, ...]] = []
    for row, cells in zip(group_rows, zip(*columns, strict=True), strict=True):
        lines.append((Cell(row.label), *cells, Cell(_delta(row, group_rows, scope))))
        if (printed := row.published.printed.get(scope)) is not None:
            theirs = printed.clients if len(printed.clients) == len(names) else [None] * len(names)
            gap = "" if row.published.other_data else f"ours {_signed(_gap(row, scope))}"
            shown = [NONE if v is None else f"{v:.2f}" for v in (*theirs, printed.value)]
            lines.append(tuple(map(Cell, (f"  {printed.table}", *shown, gap))))
    header = ("method", *(f"{name}{arrow}" for name in names), "average", "Δ solo")
    what = scope if metric == "accuracy" else heading(metric, scope)
    return Sheet(f"{group} · {what}", header, tuple(lines), notes(group_rows))


def cost_sheet(group: str, group_rows: Sequence[Row]) -> Sheet:
    """Measured bytes, models held, seconds of each phase, and the added seconds over the fastest row of the group."""
    costs = [cost_of(row) for row in group_rows]
    totals = [cost["seconds_total"] or 0.0 for cost in costs]
    lines = []
    for row, cost, total in zip(group_rows, costs, totals, strict=True):
        phases = (cost.get(f"seconds_{name}") or 0.0 for name in ("public", "local", "evaluate", "total"))
        held = cost["models_held"]
        cells = (
            row.label, readable_bytes(cost["bytes_up"] or 0), readable_bytes(cost["bytes_down"] or 0),
            f"{cost['messages']:g}", NONE if held is None else f"{held:.2f}", *(f"{value:.2f}" for value in phases),
            f"{total - min(totals):+.2f}",
        )  # fmt: skip
        lines.append(tuple(map(Cell, cells)))
    header = ("method", "up", "down", "msgs", "models", "public s", "local s", "test s", "total s", "added s")
    explanation = (
        "up, down: bytes of one client in a round; msgs (messages) and seconds: of all clients in a round",
        "models: what a client stores between rounds, its own model included, in sizes of its model",
    )
    return Sheet(f"{group} · cost", header, tuple(lines), explanation)


def record(row: Row, group_rows: Sequence[Row], view: View = "accuracy", target: float | None = None) -> dict[str, Any]:
    """All numbers of a row by name. Names without a number are absent."""
    first = row.results[0]
    facts: dict[str, Any] = {
        "setting": row.group, "label": row.label, "method": row.method, "profile": first.profile,
        "public": first.public, "seeds": len(row.results), "metric": row.metric,
    }  # fmt: skip
    for scope in SCOPES:
        own, printed = row.number(scope), row.published.printed.get(scope)
        if own is None:
            continue
        facts |= {scope: own.mean, f"{scope}_sd": own.sd, f"{scope}_minus_solo": delta(row, group_rows, scope)}
        if printed is not None:
            facts |= {f"{scope}_paper": printed.value, f"{scope}_paper_table": printed.table}
            facts[f"{scope}_minus_paper"] = None if row.published.other_data else _gap(row, scope)
        if view == "clients":
            names = [client["name"] for client in first.clients]
            facts |= {f"{scope}_{name}": n and n.mean for name, n in zip(names, row.clients(scope), strict=False)}
    if (unseen := row.number("unseen")) is not None:
        facts |= {"unseen": unseen.mean, "unseen_sd": unseen.sd}
        facts["unseen_minus_solo"] = delta(row, group_rows, "unseen")
    for name, over in (("worst", row.worst()), ("spread", row.spread())):
        if over is not None:
            facts[name] = over.mean
    if target is not None:
        facts[f"rounds_to_{target:g}"] = row.rounds_to(target)
        facts[f"interactions_to_{target:g}"] = row.interactions_to(target)
    habit = habit_fields(row) if view == "best-round" else {}
    return facts | cost_of(row) | budget_of(row) | habit


def _delta(row: Row, group_rows: Sequence[Row], scope: str) -> str:
    return _signed(delta(row, group_rows, scope), row.digits)


def _signed(value: float | None, digits: int = 2) -> str:
    return NONE if value is None else f"{value:+.{digits}f}"


def _gap(row: Row, scope: str) -> float | None:
    """Our number minus the paper's."""
    own, printed = row.number(scope), row.published.printed.get(scope)
    return None if own is None or printed is None else own.mean - printed.value


def _paper(row: Row, scope: str) -> str:
    gap = _gap(row, scope)
    if gap is None:
        return NONE
    printed = row.published.printed[scope]
    text = str(Number(printed.value, printed.sd))
    return text if row.published.other_data else f"{text} ({gap:+.2f})"


def _target(row: Row) -> float | None:
    """The accuracy for which a paper prints the rounds."""
    printed = row.published.printed.get("rounds")
    return printed.target if printed else None


def _paper_unit(row: Row) -> Unit | None:
    """What a paper's count of rounds counts."""
    printed = row.published.printed.get("rounds")
    return printed.unit if printed else None


def _rounds(row: Row, goal: float | None, unit: Unit = "rounds") -> str:
    if goal is None:
        return NONE
    reached = row.rounds_to(goal) if unit == "rounds" else row.interactions_to(goal)
    own = f"{'not' if reached is None else f'{reached:g}'} to {goal:g} %"
    same = (_target(row), _paper_unit(row)) == (goal, unit)
    return f"{own} (paper {row.published.printed['rounds'].value:g})" if same else own


def notes(group_rows: Sequence[Row]) -> tuple[str, ...]:
    """Sources of the papers' numbers, differences between our runs and theirs, and remarks on the data."""
    matched = [(row.label, row.published) for row in group_rows if row.published]
    same = [(label, match) for label, match in matched if not match.other_data]
    other = [match for _, match in matched if match.other_data]
    lines = [f"paper: {_tables(match for _, match in same)}"] if same else []
    if other:
        scenarios = ", ".join(dict.fromkeys(n.scenario for match in other for n in match.printed.values()))
        lines.append(f"paper: {_tables(other)} on {scenarios}, other data than ours: for orientation only")
    lines += _differences([(label, match.notes) for label, match in same])
    doubted = [n for _, match in matched for n in match.printed.values() if n.doubt]
    lines += dict.fromkeys(f"{n.table}, {n.label} {n.metric}: {n.doubt}" for n in doubted)
    remarks = dict.fromkeys(note for row in group_rows for result in row.results for note in result.notes)
    return (*lines, f"data: {'; '.join(remarks)}") if remarks else tuple(lines)


def _tables(matches: Iterable[Match]) -> str:
    return ", ".join(dict.fromkeys(n.table for match in matches for n in match.printed.values()))


def _differences(labelled: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """How rows differ from the paper: first what holds for all of them, then what holds for some, by label."""
    shared = [note for note in (labelled[0][1] if labelled else ()) if all(note in theirs for _, theirs in labelled)]
    found = {"; ".join(shared): ["all rows"]} if shared else {}
    for label, theirs in labelled:
        if rest := [note for note in theirs if note not in shared]:
            found.setdefault("; ".join(rest), []).append(label)
    return [f"differs from the paper (its value in brackets), {' · '.join(who)}: {note}" for note, who in found.items()]
