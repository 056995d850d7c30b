"""Parses the tables of a Markdown page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple


class Table(NamedTuple):
    line: int
    header: list[str]
    rows: list[list[str]]

    def column(self, name: str) -> list[str]:
        return [row[self.header.index(name)] for row in self.rows]


def cells(line: str) -> list[str]:
    """The cells of a row, without emphasis; ``\\|`` is part of a cell."""
    inner = line.strip().removeprefix("|").removesuffix("|")
    return [re.sub(r"\*\*|</?u>", "", cell).strip() for cell in re.split(r"(?<!\\)\|", inner)]


def tables_of(page: Path) -> list[Table]:
    """All tables outside of code blocks."""
    lines = re.sub(
        r"^```.*?^```", lambda m: "\n" * m[0].count("\n"), page.read_text(encoding="utf-8"), flags=re.M | re.S
    ).splitlines()
    found: list[Table] = []
    for number, line in enumerate(lines):
        if re.fullmatch(r"\|(?:\s*:?-+:?\s*\|)+", line.strip()):
            body = []
            for row in lines[number + 1 :]:
                if not row.lstrip().startswith("|"):
                    break
                body.append(cells(row))
            found.append(Table(number, cells(lines[number - 1]), body))
    return found
