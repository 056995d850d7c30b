"""Tables of differences: every row of a group minus a reference row, as text, as CSV fields and as JSON."""

from collections.abc import Iterable, Sequence
from typing import Any

from fedchoir.core.result import Result
from fedchoir.reporting.differences import Difference, Scores, difference, scores
from fedchoir.reporting.headline import ALL_SCOPES, heading
from fedchoir.reporting.render import NONE, Cell, Sheet
from fedchoir.reporting.run_data import tidy
from fedchoir.reporting.run_groups import Row, group_of, grouped
from fedchoir.utils.errors import UsageError

REFERENCE = "solo"
NOTES = (
    "paired by seed, Student's t; better or worse only where the interval over seeds excludes zero",
    "seeds needed: for an interval that excludes zero, if difference and standard deviation stay as they are",
)
SAMPLES_NOTE = (
    "over test samples: bootstrap of the last round, models as trained; samples not paired, so rather too wide"
)
MOST_REFERENCES = 24
"""A report of more rows shows the differences to one reference only; with all pairs it would be too large."""
SEVERAL = 10
SEVERAL_NOTE = "{} differences: by chance about one in twenty intervals excludes zero"


def references(table_rows: Sequence[Row], against: str | None = None) -> dict[str, Row]:
    """The row that the others of each group are compared with: SOLO, or the row with the label or method ``against``.

    A group without the row ``against`` takes it from a group that differs only in its models; `UsageError` if no group
    has it.
    """
    found: dict[str, Row] = {}
    for group, group_rows in grouped(table_rows):
        row = named(group_rows, against or REFERENCE)
        if row is None and against:
            setting = without_models(group_rows[0].results[0])
            row = named((row for row in table_rows if without_models(row.results[0]) == setting), against)
        if row is not None:
            found[group] = row
    if against and not found:
        known = ", ".join(dict.fromkeys(row.label for row in table_rows))
        raise UsageError(f"--against: no row is called {against!r}; there are {known}")
    return found


def named(table_rows: Iterable[Row], name: str) -> Row | None:
    """The row with this label, else the one of this method with the shortest label."""
    fitting = [row for row in table_rows if name in (row.label, row.method)]
    return min(fitting, key=lambda row: (row.label != name, len(row.label)), default=None)


def without_models(result: Result) -> str:
    """The group of a result if models did not matter: data, number of clients and rounds."""
    clients = [{**client, "model": ""} for client in result.clients]
    settings = {name: value for name, value in result.settings.items() if name != "rotate"}
    return group_of(result.model_copy(update={"clients": clients, "settings": settings}))


def described(reference: Row, group: str) -> str:
    """The label of the reference; with its models where it comes from another group."""
    if reference.group == group:
        return reference.label
    models = dict.fromkeys(client["model"] for client in reference.results[0].clients)
    return f"{reference.label} ({', '.join(models)})"


def differences_to(reference: Row, group_rows: Iterable[Row], scope: str) -> list[tuple[Row, Difference]]:
    """Every other row of a group minus the reference, where they have a seed in common."""
    base = scores(reference, scope)
    pairs = ((row, difference(scores(row, scope), base)) for row in group_rows if row is not reference)
    return [(row, found) for row, found in pairs if found is not None]


def difference_sheets(group: str, group_rows: Sequence[Row], reference: Row) -> list[Sheet]:
    """One table per scope, with notes below the last."""
    made: list[Sheet] = []
    domains = any(row.number("inter") for row in group_rows)
    for scope in ALL_SCOPES:
        found = differences_to(reference, group_rows, scope)
        if not found:
            continue
        header = ["method", "seeds", "difference", "95 % over seeds", "verdict", "seeds needed"]
        lines = [[row.label, *_texts(each, reference.digits)] for row, each in found]
        notes = [*NOTES, *([SEVERAL_NOTE.format(len(found))] if len(found) >= SEVERAL else [])]
        if any(each.samples for _, each in found):
            header.append("95 % over test samples")
            lines = [
                [*line, _span(each.samples, reference.digits)] for line, (_, each) in zip(lines, found, strict=True)
            ]
            notes.append(SAMPLES_NOTE)
        what = heading(reference.metric, scope if domains else "")
        title = f"{group} · {what} minus {described(reference, group)}"
        made.append(Sheet(title, tuple(header), tuple(tuple(map(Cell, line)) for line in lines), tuple(notes)))
    return [sheet._replace(notes=()) for sheet in made[:-1]] + made[-1:]


def _texts(found: Difference, digits: int) -> list[str]:
    return [
        str(found.seeds),
        _signed(found.mean, digits),
        _span(found.interval, digits),
        found.verdict,
        found.seeds_needed or NONE,
    ]


def _span(span: tuple[float, float] | None, digits: int) -> str:
    return NONE if span is None else f"{_signed(span[0], digits)} to {_signed(span[1], digits)}"


def _signed(value: float, digits: int) -> str:
    """A number with its sign, never minus zero."""
    return f"{round(value, digits) + 0.0:+.{digits}f}"


def difference_fields(row: Row, reference: Row | None) -> dict[str, Any]:
    """The differences of a row by name, for CSV; none for the reference itself."""
    if reference is None or row is reference:
        return {}
    facts: dict[str, Any] = {"against": described(reference, row.group)}
    for scope in ALL_SCOPES:
        for _, found in differences_to(reference, [row], scope):
            facts |= {f"{scope}_{name}": value for name, value in as_json(found).items()}
    return facts


def as_json(found: Difference) -> dict[str, Any]:
    """The numbers of a difference by name."""
    (low, high), (samples_low, samples_high) = (span or (None, None) for span in (found.interval, found.samples))
    return {
        "difference": found.mean, "paired_seeds": found.seeds, "low": low, "high": high, "verdict": found.verdict,
        "seeds_needed": found.seeds_needed, "samples_low": samples_low, "samples_high": samples_high,
    }  # fmt: skip


def all_differences(group_rows: Sequence[Row]) -> dict[str, Any]:
    """For the report: the position of the first reference, and of each scope a list with an entry per reference: None,
    or the differences of all rows to it. Large groups have the first reference alone."""
    solo = named(group_rows, REFERENCE)
    first = next((k for k, row in enumerate(group_rows) if row is solo), 0)
    wanted = range(len(group_rows)) if len(group_rows) <= MOST_REFERENCES else [first]
    made: dict[str, list[list[dict[str, Any] | None] | None]] = {}
    for scope in ALL_SCOPES:
        known = [scores(row, scope) for row in group_rows]
        if any(each.by_seed for each in known):
            made[scope] = [_column(known, k) if k in wanted else None for k in range(len(known))]
    return {"first": first, **made}


def _column(known: Sequence[Scores], reference: int) -> list[dict[str, Any] | None]:
    found = [None if k == reference else difference(own, known[reference]) for k, own in enumerate(known)]
    tidied = [as_json(each) if each else None for each in found]
    return [each and {n: tidy(v, 8) if isinstance(v, float) else v for n, v in each.items()} for each in tidied]
