"""One table of all methods for each augmentation of the private samples: scores, and a client's training, bytes and
parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any

from fedchoir import methods
from fedchoir.reporting.costs import PHASES, budget_of
from fedchoir.reporting.differences import difference, scores
from fedchoir.reporting.pareto import front
from fedchoir.reporting.render import NONE, Cell, Sheet, markdown
from fedchoir.reporting.run_groups import Row
from fedchoir.utils.sizes import readable_bytes

OPTION = "private_augment"
KINDS = ("different", "different, public set", "one", "reference")
HEADER = (
    "method",
    "architectures",
    "intra %",
    "inter %",
    "inter − alone",
    "worst",
    "samples",
    "up",
    "down",
    "parameters",
)
NOTES = (
    "architectures: of the clients' models, and whether the method needs a public set",
    "inter − alone: minus SOLO with the same models, paired by seed, with its 95 % interval; bold where it excludes 0",
    "worst: the worst client on its own test data",
    "samples, up, down, parameters: of one client in the whole run, mean over clients; samples: private, public and "
    "received ones that it trains on, as often as they come; parameters include those of auxiliary networks",
)


def method_tables(table_rows: Sequence[Row]) -> str:
    """Return a Markdown table of the rows with each augmentation, methods of one kind together."""
    sheets = []
    for value in dict.fromkeys(augmentation(row) for row in table_rows):
        group = [row for each in KINDS for row in table_rows if augmentation(row) == value and kind(row) == each]
        lines = tuple(tuple(map(Cell, line(row, group))) for row in group)
        sheets.append(markdown(Sheet(f"{OPTION}={value}", HEADER, lines, NOTES)))
    return "\n".join(sheets)


def pareto_panels(table_rows: Sequence[Row]) -> dict[str, Any]:
    """Return the points of `fedchoir.reporting.figures.pareto`, a panel for each augmentation; named are the front
    and the best of each kind."""
    panels = []
    for value in dict.fromkeys(map(augmentation, table_rows)):
        points = pareto_points(row for row in table_rows if augmentation(row) == value)
        if not points:
            continue
        best = front([(point["intra"], point["inter"]) for point in points])
        of_kind = ([k for k, point in enumerate(points) if point["kind"] == each] for each in KINDS)
        named = {*best, *(max(group, key=lambda k: points[k]["inter"]) for group in of_kind if group)}
        panels.append({"title": f"{OPTION}={value}", "points": points, "front": best, "named": sorted(named)})
    return {"panels": panels}


def pareto_with_bytes(table_rows: Sequence[Row]) -> dict[str, Any]:
    """The same for a few rows in one panel, all named, with the bytes that all clients send and receive in a run."""
    points = pareto_points(table_rows, lambda row: f"{label(row)}, {run_bytes(row)}")
    best = front([(point["intra"], point["inter"]) for point in points])
    return {"panels": [{"title": "", "points": points, "front": best, "named": list(range(len(points)))}]}


def run_bytes(row: Row) -> str:
    return readable_bytes(round(fmean(result.bytes_up + result.bytes_down for result in row.results)))


def augmentation(row: Row) -> str:
    return str(row.results[0].settings[OPTION])


def label(row: Row) -> str:
    return row.label.removesuffix(f" {OPTION}={augmentation(row)}")


def pareto_points(table_rows: Iterable[Row], name: Callable[[Row], str] = label) -> list[dict[str, Any]]:
    """Return a point for each row that has both scores."""
    both = [(row, row.number("intra"), row.number("inter")) for row in table_rows]
    return [
        {"label": name(row), "kind": kind(row), "intra": intra.mean, "inter": inter.mean}
        for row, intra, inter in both
        if intra is not None and inter is not None
    ]


def kind(row: Row) -> str:
    """Return what a method needs of the clients' architectures; rows with a label of their own are references."""
    cls = methods.registry().get(label(row))
    if cls is None:
        return KINDS[3]
    return KINDS[2] if not cls.heterogeneous else KINDS[1] if cls.needs_public else KINDS[0]


def line(row: Row, group: Sequence[Row]) -> list[str]:
    budget = budget_of(row)
    traffic = (readable_bytes(budget[f"run_bytes_{way}"] or 0) for way in ("up", "down"))
    parameters = (budget["parameters"] or 0) + (budget["module_parameters"] or 0)
    intra, inter, worst = (str(number or NONE) for number in (row.number("intra"), row.number("inter"), row.worst()))
    found = [budget[f"samples_{phase}"] for phase in PHASES]
    samples = f"{sum(count or 0 for count in found):,.0f}" if any(found) else NONE
    return [label(row), kind(row), intra, inter, gain(row, group), worst, samples, *traffic, f"{parameters:,.0f}"]


def gain(row: Row, group: Sequence[Row]) -> str:
    """Return inter-domain accuracy minus that of the same models alone."""
    reference = alone(row, group)
    found = difference(scores(row, "inter"), scores(reference, "inter")) if reference else None
    if found is None or found.interval is None:
        return NONE
    low, high = found.interval
    text = f"{found.mean:+.1f} ({low:+.1f} to {high:+.1f})".replace("-", "−")
    return f"**{text}**" if low > 0 or high < 0 else text


def alone(row: Row, group: Sequence[Row]) -> Row | None:
    """Return the SOLO row with the same models; None for that row itself."""
    for other in group:
        run = other.results[0]
        if run.method == "solo" and not run.settings.get("centralized") and models(other) == models(row):
            return None if other is row else other
    return None


def models(row: Row) -> list[str]:
    return [client["model"] for client in row.results[0].clients]
