from __future__ import annotations

import io

from rich.console import Console

from fedchoir.reporting.render import Cell, Sheet, latex, markdown, terminal

SHEET = Sheet("a_b", ("method", "x %"), ((Cell("m|1"), Cell("1.0 ± 0.1", 0)), (Cell("n_2 & co"), Cell("2", 1))), ("n",))


def test_markdown_marks_best_and_second_and_escapes_pipes() -> None:
    text = markdown(SHEET)
    assert "| m\\|1 | **1.0 ± 0.1** |" in text
    assert "| n_2 & co | <u>2</u> |" in text
    assert text.endswith("\nn\n")


def test_latex_marks_and_escapes() -> None:
    text = latex(SHEET)
    assert text.startswith("% a_b\n% n\n")
    assert "\\textbf{1.0 $\\pm$ 0.1}" in text
    assert "n\\_2 \\& co & \\underline{2} \\\\" in text
    assert "x \\%" in text
    assert text.count("{") == text.count("}")


def test_terminal_prints_markup_in_names_as_text() -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(terminal(Sheet("[bold]", ("a column",), ((Cell("[/]", 0),),))))
    assert "[bold]" in out.getvalue()
    assert "[/]" in out.getvalue()
