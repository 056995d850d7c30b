"""Commands for people who look: report, ui, analyse, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

console = Console()


def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders of such folders.")],
    out: Annotated[Path | None, typer.Option(help="The page to write (default: report.html in the first).")] = None,
) -> None:
    """Write one self-contained page: tables, curves, matrices, losses, traffic, time and settings of the runs."""
    from fedchoir.report.page import write_report

    path = write_report(folders, out)
    console.print(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB): open it in a browser", soft_wrap=True)
