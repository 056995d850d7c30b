"""A table with marked cells, and how it is written: for the terminal, as Markdown, as LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.markup import escape as plain_markup
from rich.table import Table

NONE = "–"


@dataclass(frozen=True)
class Cell:
    """A cell's text and, in a column of accuracies, its place: 0 is best."""

    text: str
    place: int | None = None


@dataclass(frozen=True)
class Sheet:
    """One table: its title, header, cells and what a reader must know. A line whose first cell is indented belongs to
    the one before it."""

    title: str
    header: tuple[str, ...]
    lines: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


def terminal(sheet: Sheet) -> Table:
    """Best in bold, second underlined."""
    table = Table(
        title=plain_markup(sheet.title), title_justify="left", title_style="bold", header_style="bold cyan",
        caption=plain_markup("\n".join(sheet.notes)) or None, caption_justify="left",
        box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0),
    )  # fmt: skip
    for i, name in enumerate(sheet.header):
        words = [word for text in (name, *(line[i].text for line in sheet.lines)) for word in text.split()]
        table.add_column(name, justify="left" if i == 0 else "right", overflow="fold", min_width=max(map(len, words)))
    for line in sheet.lines:
        style = "dim" if line[0].text.startswith(" ") else None
        table.add_row(*_marked(line, "[bold green]{}[/]", "[underline]{}[/]", plain_markup), style=style)
    return table


def markdown(sheet: Sheet) -> str:
    lines = [f"**{sheet.title}**", "", "| " + " | ".join(sheet.header) + " |", "|" + "---|" * len(sheet.header)]
    lines += ["| " + " | ".join(_marked(line, "**{}**", "<u>{}</u>", _no_pipes)) + " |" for line in sheet.lines]
    return "\n".join([*lines, *(f"\n{note}" for note in sheet.notes)]) + "\n"


def latex(sheet: Sheet) -> str:
    """A tabular for booktabs; title and notes are comments above it."""
    lines = [f"% {sheet.title}", *(f"% {note}" for note in sheet.notes)]
    lines += ["\\begin{tabular}{l" + "r" * (len(sheet.header) - 1) + "}", "\\toprule"]
    lines += [" & ".join(map(latex_escape, sheet.header)) + " \\\\", "\\midrule"]
    for line in sheet.lines:
        cells = _marked(line, "\\textbf{{{}}}", "\\underline{{{}}}", latex_escape)
        lines.append(" & ".join(cells) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _marked(line: Sequence[Cell], best: str, second: str, escape: Callable[[str], str]) -> list[str]:
    marks = {0: best, 1: second}
    return [marks.get(9 if cell.place is None else cell.place, "{}").format(escape(cell.text)) for cell in line]


def _no_pipes(text: str) -> str:
    return text.replace("|", "\\|")


def latex_escape(text: str) -> str:
    for plain, escaped in (
        ("%", r"\%"), ("_", r"\_"), ("±", r"$\pm$"), ("Δ", r"$\Delta$"), ("–", "--"), ("&", r"\&"), ("#", r"\#"),
        ("→", r"$\rightarrow$"), ("−", "$-$"), ("·", r"$\cdot$"),
    ):  # fmt: skip
        text = text.replace(plain, escaped)
    return text
