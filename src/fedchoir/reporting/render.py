"""Writes a table with marked cells for the terminal, as Markdown or as LaTeX."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from rich import box
from rich.markup import escape as escape_markup
from rich.table import Table

NONE = "–"


class Cell(NamedTuple):
    """A cell's text and, in a column of accuracies, its place: 0 is best."""

    text: str
    place: int | None = None


class Sheet(NamedTuple):
    """One table with its title and notes. A line whose first cell is indented belongs to the line above it."""

    title: str
    header: tuple[str, ...]
    lines: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


class Mean(Protocol):
    """What `ranked` needs of a number: it is shown by ``str``."""

    @property
    def mean(self) -> float: ...


def ranked(numbers: Sequence[Mean | None], better: Callable[[float, float], bool]) -> list[Cell]:
    """A column of scores with the place of each; a column of one row has no places."""
    means = [number.mean for number in numbers if number is not None]
    return [
        Cell(NONE) if n is None else Cell(str(n), sum(better(m, n.mean) for m in means) if len(means) > 1 else None)
        for n in numbers
    ]


def terminal(sheet: Sheet) -> Table:
    """Best in bold, second underlined."""
    table = Table(
        title=escape_markup(sheet.title), title_justify="left", title_style="bold", header_style="bold cyan",
        caption=escape_markup("\n".join(sheet.notes)) or None, caption_justify="left",
        box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0),
    )  # fmt: skip
    for i, name in enumerate(sheet.header):
        words = [word for text in (name, *(line[i].text for line in sheet.lines)) for word in text.split()]
        table.add_column(name, justify="left" if i == 0 else "right", overflow="fold", min_width=max(map(len, words)))
    for line in sheet.lines:
        style = "dim" if line[0].text.startswith(" ") else None
        table.add_row(*_marked(line, "[bold green]{}[/]", "[underline]{}[/]", escape_markup), style=style)
    return table


def markdown(sheet: Sheet) -> str:
    lines = [f"**{sheet.title}**", "", "| " + " | ".join(sheet.header) + " |", "|" + "---|" * len(sheet.header)]
    for line in sheet.lines:
        lines.append("| " + " | ".join(_marked(line, "**{}**", "<u>{}</u>", lambda t: t.replace("|", "\\|"))) + " |")
    return "\n".join([*lines, *(f"\n{note}" for note in sheet.notes)]) + "\n"


LATEX = str.maketrans({
    "%": r"\%", "_": r"\_", "±": r"$\pm$", "Δ": r"$\Delta$", "–": "--", "&": r"\&", "#": r"\#",
    "→": r"$\rightarrow$", "−": "$-$", "·": r"$\cdot$",
})  # fmt: skip


def latex(sheet: Sheet) -> str:
    """A booktabs tabular; title and notes are comments above it."""
    lines = [f"% {text}" for text in (sheet.title, *sheet.notes)]
    lines += ["\\begin{tabular}{l" + "r" * (len(sheet.header) - 1) + "}", "\\toprule"]
    lines += [" & ".join(name.translate(LATEX) for name in sheet.header) + " \\\\", "\\midrule"]
    for line in sheet.lines:
        marked = _marked(line, "\\textbf{{{}}}", "\\underline{{{}}}", lambda text: text.translate(LATEX))
        lines.append(" & ".join(marked) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _marked(line: tuple[Cell, ...], best: str, second: str, escape: Callable[[str], str]) -> list[str]:
    marks = {0: best, 1: second}
    return [marks.get(-1 if cell.place is None else cell.place, "{}").format(escape(cell.text)) for cell in line]
