"""report, ui and analyse: look at runs."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedchoir.cli.options import DataRoot, Folders, Metric, console

app = typer.Typer()


@app.command(epilog="Example: [bold]fedchoir report runs/[/]")
def report(
    folders: Folders,
    out: Annotated[Path | None, typer.Option(help="The page to write (default: report.html in the first).")] = None,
    metric: Metric = None,
) -> None:
    """Write one self-contained page: tables, curves, matrices, losses, traffic, time and settings of the runs."""
    from fedchoir.reporting.page import write_report

    path = write_report(folders, out, metric)
    size = path.stat().st_size / 1e6
    console.print(f"wrote {escape(str(path))} ({size:.1f} MB): open it in a browser", soft_wrap=True)


@app.command(epilog="Example: [bold]fedchoir ui runs/[/]")
def ui(
    folder: Annotated[Path, typer.Argument(help="A folder of runs.")] = Path("runs"),
    host: Annotated[str, typer.Option(help="Address to serve on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8090,
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="Serve other machines, without a login.")
    ] = False,
) -> None:
    """Show the runs of a folder in the browser while they go on. Read-only."""
    from fedchoir.reporting.live.server import LiveServer

    with LiveServer(folder, host, port, allow_remote=allow_remote) as server:
        console.print(f"the runs in {escape(str(folder))}: [bold]{server.url}[/] (Ctrl-C ends it)", soft_wrap=True)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            console.print("stopped")


class Picture(StrEnum):
    png = "png"
    svg = "svg"


@app.command(epilog="Example: [bold]fedchoir analyse runs/my-run --format svg[/]")
def analyse(
    folder: Annotated[Path, typer.Argument(help="The folder of one run.")],
    only: Annotated[list[str] | None, typer.Option(help="Only this figure; may be given several times.")] = None,
    kind: Annotated[Picture, typer.Option("--format", help="png or svg.")] = Picture.png,
    data_root: DataRoot = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
) -> None:
    """Make the papers' figures from a run; its models are rebuilt from the last checkpoint."""
    from fedchoir.reporting.analysis import analyse as figures
    from fedchoir.reporting.analysis.load import load_run

    def show(outcome: figures.Outcome) -> None:
        text = f"[green]{outcome.file}[/]" if outcome.file else f"[dim]not made: {escape(outcome.why_not)}[/]"
        console.print(f"{outcome.name:22} {text}", soft_wrap=True)

    name = escape(str(folder))
    run = load_run(folder, data_root=data_root, device=device)
    figures.analyse(run, only=only, kind=kind.value, report=show)
    console.print(f"in {name}/analysis; [bold]fedchoir report {name}[/] shows them", soft_wrap=True)
