"""Commands for people who look: report, ui, analyse, doctor."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

console = Console()


def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders of such folders.")],
    out: Annotated[Path | None, typer.Option(help="The page to write (default: report.html in the first).")] = None,
) -> None:
    """Write one self-contained page: tables, curves, matrices, losses, traffic, time and settings of the runs."""
    from fedchoir.reporting.page import write_report

    path = write_report(folders, out)
    console.print(
        f"wrote {escape(str(path))} ({path.stat().st_size / 1e6:.1f} MB): open it in a browser", soft_wrap=True
    )


def ui(
    folder: Annotated[Path, typer.Argument(help="A folder of runs.")] = Path("runs"),
    host: Annotated[str, typer.Option(help="Address to serve on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8090,
    allow_remote: Annotated[bool, typer.Option("--allow-remote", help="Let other machines look, unguarded.")] = False,
) -> None:
    """Watch the runs of a folder in the browser while they go on. Read-only."""
    from fedchoir.reporting.live.server import LiveServer

    with LiveServer(folder, host, port, allow_remote=allow_remote) as server:
        console.print(f"the runs in {escape(str(folder))}: [bold]{server.url}[/] (Ctrl-C ends it)", soft_wrap=True)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            console.print("bye")


class Picture(StrEnum):
    png = "png"
    svg = "svg"


def analyse(
    folder: Annotated[Path, typer.Argument(help="The folder of one run.")],
    only: Annotated[list[str] | None, typer.Option(help="Only this figure; may be given several times.")] = None,
    kind: Annotated[Picture, typer.Option("--format", help="png or svg.")] = Picture.png,
    data_root: Annotated[Path | None, typer.Option(help="Where data sets lie (else FEDCHOIR_DATA).")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
) -> None:
    """Make the papers' figures from a run: its models are rebuilt from the last checkpoint."""
    from fedchoir.reporting.analysis import analyse as figures
    from fedchoir.reporting.analysis.load import load_run

    def tell(outcome: figures.Outcome) -> None:
        came = f"[green]{outcome.file}[/]" if outcome.file else f"[dim]not here: {escape(outcome.why_not)}[/]"
        console.print(f"{outcome.name:22} {came}", soft_wrap=True)

    name = escape(str(folder))
    run = load_run(folder, data_root=data_root, device=device)
    figures.analyse(run, only=only, kind=kind.value, tell=tell)
    console.print(f"in {name}/analysis; [bold]fedchoir report {name}[/] shows them", soft_wrap=True)


def doctor(
    data_root: Annotated[Path | None, typer.Option(help="Where data sets lie (else FEDCHOIR_DATA).")] = None,
) -> None:
    """Say what this machine has (devices, versions, disk, data) and what is missing."""
    from fedchoir.cli.doctor import examine

    findings = examine(data_root)
    marks = {"good": "[green]✓[/]", "absent": "[yellow]–[/]", "bad": "[red]✗[/]"}
    for section in dict.fromkeys(finding.section for finding in findings):
        console.print(f"[bold]{section}[/]")
        for finding in (f for f in findings if f.section == section):
            console.print(f"  {marks[finding.state]} {finding.name:<15} {escape(finding.text)}", soft_wrap=True)
    if any(finding.section == "data" and finding.state == "absent" for finding in findings):
        console.print("  [dim]fedchoir data show: where to get what is lacking[/]")
    bad = [finding.name for finding in findings if finding.state == "bad"]
    console.print(f"[red]to put right: {', '.join(bad)}[/]" if bad else "[green]ready[/]: fedchoir demo")
    if bad:
        raise typer.Exit(1)
