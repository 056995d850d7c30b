"""Tables on the terminal, in a file and in a pipe: no number loses its last digits."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fedchoir.cli import options
from fedchoir.reporting.render import Cell, Sheet, terminal

NUMBERS = ("-12.52 to +10.14", "cannot be told", "more than 100", "98.7654321")
LONG = "solo, one small model private_augment=affine-recolor"


def printed(monkeypatch: pytest.MonkeyPatch, width: int, *, is_terminal: bool, name: str) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=is_terminal, color_system=None)
    monkeypatch.setattr(options, "console", console)
    header, line = ("method", "interval", "verdict", "seeds", "last"), (Cell(name), *map(Cell, NUMBERS))
    options.print_tables([terminal(Sheet("a title " * 20, header, (line,)))])
    return file.getvalue()


def words(text: str) -> set[str]:
    return set(text.split())


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_a_terminal_of_any_width_shows_every_number(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    for name in ("solo", LONG):
        assert words(" ".join(NUMBERS)) <= words(printed(monkeypatch, width, is_terminal=True, name=name))


def test_a_pipe_gets_every_row_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(monkeypatch, 80, is_terminal=False, name=LONG).splitlines()
    assert any(line.split() == [*LONG.split(), *" ".join(NUMBERS).split()] for line in lines)


def test_what_fits_into_the_terminal_when_folded_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(monkeypatch, 60, is_terminal=True, name="solo").splitlines()
    assert max(map(len, lines)) <= 60
