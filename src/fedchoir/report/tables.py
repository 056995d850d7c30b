"""Results side by side: one row a method, mean ± standard deviation over seeds, in the terminal or for a paper."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev

from rich.table import Table

from fedchoir.errors import UsageError
from fedchoir.federation.result import Result, load_result


@dataclass(frozen=True)
class Number:
    """A mean over seeds, with its standard deviation where there are several."""

    mean: float
    sd: float | None = None

    def text(self, plus_minus: str = "±") -> str:
        return f"{self.mean:.2f}" if self.sd is None else f"{self.mean:.2f} {plus_minus} {self.sd:.2f}"


@dataclass(frozen=True)
class Row:
    """All the runs of one method with one setting, over seeds."""

    method: str
    label: str
    group: str
    results: tuple[Result, ...] = field(repr=False)

    @property
    def intra(self) -> Number:
        return over_seeds([r.intra_avg for r in self.results])

    @property
    def inter(self) -> Number | None:
        values = [r.inter_avg for r in self.results if r.inter_avg is not None]
        return over_seeds(values) if values else None

    @property
    def bytes_per_round(self) -> float:
        """Up and down, all clients together."""
        return mean((r.bytes_up + r.bytes_down) / r.rounds for r in self.results)

    @property
    def seconds(self) -> float:
        return mean(r.seconds["total"] for r in self.results)


def over_seeds(values: Sequence[float]) -> Number:
    return Number(mean(values), stdev(values) if len(values) > 1 else None)


def find_results(paths: Sequence[Path]) -> list[Result]:
    """Every ``result.json`` in the folders given, and in the folders in them."""
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise UsageError(f"there is no {path}")
        found += [path] if path.is_file() else sorted(path.rglob("result.json"))
    if not found:
        raise UsageError(f"no result.json in {', '.join(map(str, paths))}: no run there has finished yet")
    return [load_result(path) for path in dict.fromkeys(found)]


def rows(results: Sequence[Result]) -> list[Row]:
    """Runs that differ in their seed alone become one row; rows of one setting stand together, solo first."""
    bundles: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        key = (group_of(result), result.method, label_of(result, results))
        bundles.setdefault(key, []).append(result)
    made = [Row(method, label, group, tuple(rs)) for (group, method, label), rs in bundles.items()]
    return sorted(made, key=lambda row: (row.group, row.method != "solo"))


def group_of(result: Result) -> str:
    """What must agree for two runs to be compared: data, models and length."""
    models = ", ".join(c["model"] for c in result.clients) if len(result.clients) <= 8 else result.clients[0]["model"]
    return f"{result.scenario} · {len(result.clients)} clients ({models}) · {result.rounds} rounds"


def label_of(result: Result, among: Sequence[Result]) -> str:
    """The method, with the profile and the settings in which the runs of that method differ."""
    same = [r for r in among if r.method == result.method and group_of(r) == group_of(result)]
    parts = [result.method]
    if len({r.profile for r in same}) > 1 or result.profile != "fixed":
        parts.append(result.profile)
    differing = {
        k
        for k in result.settings
        for r in same
        if r.profile == result.profile and r.settings.get(k) != result.settings[k]
    }
    parts += [f"{k}={result.settings[k]}" for k in sorted(differing)]
    if len({r.public for r in same}) > 1:
        parts.append(f"public={result.public}")
    return " ".join(parts)


def terminal_tables(table_rows: Sequence[Row]) -> list[Table]:
    """One rich table for each group, best in bold, second underlined."""
    tables = []
    for group in dict.fromkeys(row.group for row in table_rows):
        members = [row for row in table_rows if row.group == group]
        table = Table(title=group, title_justify="left", title_style="bold", header_style="bold cyan")
        for name, justify in HEADER:
            table.add_column(name, justify="left" if justify == "left" else "right")
        for row, cells in zip(members, cells_of(members), strict=True):
            styled = [rank_style(members, row, name, cell) for (name, _), cell in zip(HEADER, cells, strict=True)]
            table.add_row(*styled)
        tables.append(table)
    return tables


HEADER = (
    ("method", "left"), ("seeds", "right"), ("intra %", "right"), ("inter %", "right"), ("Δ inter to solo", "right"),
    ("traffic / round", "right"), ("seconds", "right"),
)  # fmt: skip


def cells_of(members: Sequence[Row]) -> list[list[str]]:
    """The text of each row of one group."""
    solo = next((row.inter for row in members if row.method == "solo"), None)
    made = []
    for row in members:
        delta = f"{row.inter.mean - solo.mean:+.2f}" if row.inter and solo and row.method != "solo" else "–"
        made.append([
            row.label, str(len(row.results)), row.intra.text(), row.inter.text() if row.inter else "–", delta,
            readable_bytes(row.bytes_per_round), f"{row.seconds:.1f}",
        ])  # fmt: skip
    return made


def rank_style(members: Sequence[Row], row: Row, column: str, cell: str) -> str:
    rank = ranks(members, column).get(id(row))
    return {0: f"[bold green]{cell}[/]", 1: f"[underline]{cell}[/]"}.get(rank if rank is not None else 9, cell)


def ranks(members: Sequence[Row], column: str) -> dict[int, int]:
    """Place of each row in an accuracy column; nothing for other columns or a single row."""
    pick = {"intra %": lambda r: r.intra, "inter %": lambda r: r.inter}.get(column)
    if pick is None or len(members) < 2:
        return {}
    ordered = sorted((r for r in members if pick(r) is not None), key=lambda r: -pick(r).mean)
    return {id(row): place for place, row in enumerate(ordered)}


def as_text(table_rows: Sequence[Row], style: str) -> str:
    """The table as ``md``, ``latex`` or ``csv``."""
    header = [name for name, _ in HEADER]
    if style == "csv":
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(["setting", *header])
        for group, members in grouped(table_rows):
            writer.writerows([group, *cells] for cells in cells_of(members))
        return buffer.getvalue()
    build = _markdown if style == "md" else _latex
    return "\n".join(build(group, header, members) for group, members in grouped(table_rows))


def grouped(table_rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    return [(g, [r for r in table_rows if r.group == g]) for g in dict.fromkeys(r.group for r in table_rows)]


def _markdown(group: str, header: Sequence[str], members: Sequence[Row]) -> str:
    lines = [f"**{group}**", "", "| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    marks = {0: "**{}**", 1: "<u>{}</u>"}
    for row, cells in zip(members, cells_of(members), strict=True):
        lines.append("| " + " | ".join(_marked(members, row, header, cells, marks)) + " |")
    return "\n".join(lines) + "\n"


def _latex(group: str, header: Sequence[str], members: Sequence[Row]) -> str:
    marks = {0: "\\textbf{{{}}}", 1: "\\underline{{{}}}"}
    lines = [f"% {group}", "\\begin{tabular}{l" + "r" * (len(header) - 1) + "}", "\\toprule"]
    lines.append(" & ".join(latex_escape(name) for name in header) + " \\\\")
    lines.append("\\midrule")
    for row, cells in zip(members, cells_of(members), strict=True):
        escaped = [latex_escape(cell) for cell in cells]
        lines.append(" & ".join(_marked(members, row, header, escaped, marks)) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _marked(
    members: Sequence[Row], row: Row, header: Sequence[str], cells: Sequence[str], marks: dict[int, str]
) -> list[str]:
    places = [ranks(members, name).get(id(row), 9) for name in header]
    return [marks.get(place, "{}").format(cell) for place, cell in zip(places, cells, strict=True)]


def latex_escape(text: str) -> str:
    for plain, escaped in (("%", r"\%"), ("_", r"\_"), ("±", r"$\pm$"), ("Δ", r"$\Delta$"), ("–", "--"), ("&", r"\&")):
        text = text.replace(plain, escaped)
    return text


def readable_bytes(number: float) -> str:
    """
    >>> readable_bytes(0), readable_bytes(1536), readable_bytes(5_000_000)
    ('0 B', '1.5 KiB', '4.8 MiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    raise AssertionError
