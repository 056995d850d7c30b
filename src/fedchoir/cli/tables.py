"""The commands that make tables: compare finished runs, sweep over settings, reproduce a published table."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedchoir.utils.errors import UsageError

if TYPE_CHECKING:
    from fedchoir.experiments.sweep import Job, Overrides

console = Console()


class Style(StrEnum):
    terminal = "terminal"
    md = "md"
    latex = "latex"
    csv = "csv"


Format = Annotated[Style, typer.Option("--format", help="terminal, md, latex or csv.")]
PerClient = Annotated[bool, typer.Option("--per-client", help="A column for each client, as the papers print it.")]
Rounds = Annotated[int | None, typer.Option(help="Communication rounds, instead of the file's.")]
Seeds = Annotated[str | None, typer.Option(help="How many seeds (3), or which (4,7).")]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at once; cores are shared out among them.")]
Scenario = Annotated[str | None, typer.Option(help="Other data: its own public set, and models of the same kind.")]
Public = Annotated[str | None, typer.Option(help="Another public set.")]
Models = Annotated[str | None, typer.Option(help="a,b,c: other architectures.")]
Profile = Annotated[str | None, typer.Option(help="fixed, paper or official: how ambiguities are settled.")]
DataRoot = Annotated[Path | None, typer.Option(help="Where data sets lie (else FEDCHOIR_DATA).")]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Precision = Annotated[str | None, typer.Option(help="fp32, tf32 or bf16.")]
Fused = Annotated[bool, typer.Option("--fused", help="Fused layers: our own Triton kernels, for GPUs.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of every run.")]
Only = Annotated[list[str] | None, typer.Option(metavar="LABEL", help="Only these runs: a label, a method or a*b.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the runs and do nothing.")]


def compare(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders of such folders.")],
    style: Format = Style.terminal,
    per_client: PerClient = False,
    cost: Annotated[bool, typer.Option("--cost", help="Bytes, models held and seconds of each phase instead.")] = False,
    target: Annotated[float | None, typer.Option(help="Rounds until this accuracy (own domain, or global).")] = None,
) -> None:
    """Put finished runs side by side, and beside what the papers print: mean ± sd over seeds, best in bold, second
    underlined, Δ to every client alone."""
    from fedchoir.reporting.tables import View, find_results

    if cost and per_client:
        raise UsageError("--cost and --per-client are two different tables: give one of them")
    view: View = "cost" if cost else "clients" if per_client else "accuracy"
    show(find_results(folders), style, view, target)


def show(results: Any, style: Style, view: Any = "accuracy", target: float | None = None) -> None:
    from fedchoir.reporting.tables import as_text, rows, terminal_tables

    table_rows = rows(results)
    if style is not Style.terminal:
        typer.echo(as_text(table_rows, style.value, view, target), nl=False)
        return
    for table in terminal_tables(table_rows, view, target):
        console.print(table)


def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="Base values, a grid, variants and seeds.")],
    out: Annotated[Path | None, typer.Option(help="Folder for all runs (default: runs/NAME).")] = None,
    jobs: Jobs = 1,
    rounds: Rounds = None,
    seeds: Seeds = None,
    only: Only = None,
    scenario: Scenario = None,
    public: Public = None,
    models: Models = None,
    profile: Profile = None,
    data_root: DataRoot = None,
    device: Device = None,
    precision: Precision = None,
    fused: Fused = False,
    set_: Set = None,
    style: Format = Style.terminal,
    dry_run: DryRun = False,
) -> None:
    """Run every combination in a sweep file. Finished runs are skipped, interrupted ones go on, failed ones do not stop
    the others; say it again after a crash."""
    from fedchoir.experiments.sweep import jobs_of, name_of, read_sweep

    given: dict[str, Any] = {
        "rounds": rounds, "public": public, "models": models, "profile": profile, "precision": precision,
    }  # fmt: skip
    given |= {"fused": fused or None, "data_root": data_root, "device": device}
    overrides = overrides_of(scenario, seeds, given, set_)
    read = read_sweep(file)
    folder = out or Path("runs") / (name_of(file) + overrides.tag)
    planned = jobs_of(read, folder, overrides, only or ())
    play(planned, folder, jobs, style, title=read.title or name_of(file), table=None, dry_run=dry_run)


def reproduce(
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="For example fccl+/table8.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the tables.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for all runs (default: runs/PAPER/TABLE).")] = None,
    jobs: Jobs = 1,
    rounds: Rounds = None,
    seeds: Seeds = None,
    only: Only = None,
    scenario: Scenario = None,
    public: Public = None,
    models: Models = None,
    profile: Profile = None,
    data_root: DataRoot = None,
    device: Device = None,
    precision: Precision = None,
    fused: Fused = False,
    set_: Set = None,
    style: Format = Style.terminal,
    per_client: PerClient = False,
    dry_run: DryRun = False,
) -> None:
    """Run a published table and print ours beside it. Say it again after a crash: finished runs are skipped."""
    from fedchoir.experiments.reproduce import find, path_of
    from fedchoir.experiments.sweep import jobs_of, read_sweep

    if table is None or list_:
        list_tables()
        return
    given: dict[str, Any] = {
        "rounds": rounds, "public": public, "models": models, "profile": profile, "precision": precision,
    }  # fmt: skip
    given |= {"fused": fused or None, "data_root": data_root, "device": device}
    overrides = overrides_of(scenario, seeds, given, set_)
    read = read_sweep(path_of(table))
    home = find(table)
    folder = out or Path("runs") / (home + overrides.tag)
    planned = jobs_of(read, folder, overrides, only or ())
    play(planned, folder, jobs, style, title=read.title, table=home, dry_run=dry_run, per_client=per_client)


def overrides_of(
    scenario: str | None, seeds: str | None, values: dict[str, Any], settings: list[str] | None
) -> Overrides:
    from fedchoir.experiments.config import parse_setting
    from fedchoir.experiments.sweep import Overrides, parse_seeds

    return Overrides(
        scenario=scenario,
        seeds=None if seeds is None else parse_seeds(seeds),
        values={name: value for name, value in values.items() if value is not None},
        settings=dict(parse_setting(text) for text in settings or []),
    )


def play(
    planned: list[Job], folder: Path, processes: int, style: Style, *, title: str, table: str | None,
    dry_run: bool = False, per_client: bool = False,
) -> None:  # fmt: skip
    """Run what is not there yet and show the table of all that is."""
    from fedchoir.experiments.scheduler import run_jobs, write_manifest
    from fedchoir.reporting.sweep_view import SweepView, summary
    from fedchoir.reporting.tables import find_results

    quiet = Console(stderr=True) if style is not Style.terminal else console  # a table on stdout stands alone
    quiet.print(f"[bold]{title}[/] · {len(planned)} runs · {folder}/", highlight=False, soft_wrap=True)
    if dry_run:
        for job in planned:
            quiet.print(job.name, markup=False, highlight=False, soft_wrap=True)
        return
    write_manifest(folder, table, title, planned)
    with SweepView(quiet, planned) as view:
        outcomes = run_jobs(planned, processes, view)
    done = [outcome.job.out for outcome in outcomes if outcome.state != "failed"]
    if done:
        show(find_results(done), style, "clients" if per_client else "accuracy")
    quiet.print(summary(outcomes, folder), markup=False, highlight=False, soft_wrap=True)
    if len(done) < len(outcomes):
        raise typer.Exit(1)


def list_tables() -> None:
    from rich.table import Table

    from fedchoir.experiments.reproduce import path_of, tables
    from fedchoir.experiments.sweep import read_sweep

    listed = Table(title="published tables (fedchoir reproduce NAME)", title_justify="left", header_style="bold cyan")
    for column in ("name", "what it shows"):
        listed.add_column(column)
    for name in tables():
        listed.add_row(f"[bold]{name}[/]", read_sweep(path_of(name)).title)
    console.print(listed)
