"""compare, sweep and reproduce: tables of finished runs, of a sweep file, of a published table."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedchoir.cli import options as o
from fedchoir.cli.options import command, console, given, parse_settings, print_tables
from fedchoir.cli.sweeps import print_status, slurm_backend, tracked
from fedchoir.utils.errors import UsageError

if TYPE_CHECKING:
    from fedchoir.experiments.backend import Backend
    from fedchoir.experiments.sweep import Job, Overrides
    from fedchoir.reporting.run_groups import Row
    from fedchoir.reporting.tables import References, View

app = typer.Typer()
REPRODUCE_SEEDS = (0, 1, 2)
"""Of a published table, unless its file has more or --seeds is given: one seed has no interval."""


class Style(StrEnum):
    terminal = "terminal"
    md = "md"
    latex = "latex"
    csv = "csv"


Format = Annotated[Style, typer.Option("--format", help="terminal, md, latex or csv.")]
PerClient = Annotated[bool, typer.Option("--per-client", help="A column for each client, as the papers print it.")]
Seeds = Annotated[str | None, typer.Option(help="How many seeds (3), or which (4,7).")]
Jobs = Annotated[
    str | None,
    typer.Option(
        metavar="N|auto",
        help="Number of runs at once (default: 1; with --slurm: all). They share the cores. auto: as many as there are "
        "cores and as memory allows, by what the runs are measured to need; long runs start first.",
    ),
]
Scenario = Annotated[str | None, typer.Option(help="Other data, with its own public set and models of the same kind.")]
Only = Annotated[list[str] | None, typer.Option(metavar="LABEL", help="Only these runs: a label, a method or a*b.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the runs and do nothing.")]
Status = Annotated[bool, typer.Option("--status", help="Show how far every run is and do nothing.")]
Track = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TRACKER", help="Send the curves to tensorboard, wandb or mlflow; may be given several times."
    ),
]
Slurm = Annotated[
    str | None, typer.Option(metavar="PARTITION", help="Submit the runs to Slurm; 'local' tries it without a cluster.")
]
SlurmSet = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE", help="An option of sbatch: time=4:00:00, mem=32GB, gpus=1, cpus=8, account=ACCOUNT, …"
    ),
]


@app.command(epilog="Example: [bold]fedchoir compare runs/ --format latex > table.tex[/]")
def compare(
    folders: o.Folders,
    style: Format = Style.terminal,
    per_client: PerClient = False,
    cost: Annotated[bool, typer.Option("--cost", help="Bytes, models held and seconds of each phase instead.")] = False,
    target: Annotated[
        float | None, typer.Option(help="Rounds until this intra-domain or global score is reached.")
    ] = None,
    metric: o.Metric = None,
    against: Annotated[
        str | None, typer.Option(metavar="LABEL", help="Compare with this row (default: solo); a label or a method.")
    ] = None,
    best_round_habit: Annotated[
        bool, typer.Option("--best-round-habit", help="What it is worth to report the best test round instead.")
    ] = False,
    held_out: Annotated[
        bool, typer.Option("--held-out", help="Each held-out domain as a column, and their mean.")
    ] = False,
) -> None:
    """Compare finished runs with each other and with the papers: mean ± sd over seeds, best in bold, second underlined;
    then the differences to SOLO with 95 % intervals, paired by seed."""
    from fedchoir.reporting.difference_tables import references
    from fedchoir.reporting.headline import check_metric
    from fedchoir.reporting.store import find_results
    from fedchoir.reporting.tables import rows

    views: dict[str, tuple[bool, View]] = {
        "--cost": (cost, "cost"), "--per-client": (per_client, "clients"), "--held-out": (held_out, "held-out"),
        "--best-round-habit": (best_round_habit, "best-round"),
    }  # fmt: skip
    given = [name for name, (on, _) in views.items() if on]
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} are two different tables: give one of them")
    if given and against is not None:
        raise UsageError(f"--against is not possible with {given[0]}: that table has no differences")
    view: View = views[given[0]][1] if given else "accuracy"
    made = rows(find_results(folders), check_metric(metric) if metric else None)
    print_rows(made, style, view, target, references(made, against) if view == "accuracy" else None)


@app.command(epilog="Example: [bold]fedchoir sweep my-grid.toml --jobs 2 --seeds 3[/]")
def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="Base values, a grid, variants and seeds.")],
    out: Annotated[Path | None, typer.Option(help="Folder for all runs (default: runs/NAME).")] = None,
    jobs: Jobs = None,
    rounds: o.Rounds = None,
    seeds: Seeds = None,
    metric: o.Metric = None,
    only: Only = None,
    scenario: Scenario = None,
    public: o.Public = None,
    models: o.Models = None,
    profile: o.Profile = None,
    data_root: o.DataRoot = None,
    device: o.Device = None,
    precision: o.Precision = None,
    fused: o.Fused = False,
    checkpoint_every: o.CheckpointEvery = None,
    compress: o.Compress = None,
    set_: o.Set = None,
    style: Format = Style.terminal,
    dry_run: DryRun = False,
    status: Status = False,
    slurm: Slurm = None,
    slurm_set: SlurmSet = None,
    track: Track = None,
) -> None:
    """Run every combination in a sweep file. Run it again after a crash: finished runs are skipped and interrupted ones
    continue. A failed run does not stop the others."""
    from fedchoir.experiments.sweep import jobs_of, name_of, read_sweep

    overrides = make_overrides(
        scenario, seeds, set_, rounds=rounds, metric=metric, public=public, models=models, profile=profile,
        precision=precision, fused=fused, compress=compress, data_root=data_root, device=device,
        checkpoint_every=checkpoint_every,
    )  # fmt: skip
    content, name = read_sweep(file), name_of(file)
    folder = out or Path("runs") / (name + overrides.tag)
    planned = tracked(jobs_of(content, folder, overrides, only or ()), track)
    if status:
        print_status(planned)
        return
    backend = slurm_backend(slurm, slurm_set, folder, jobs) if not dry_run else None
    run_sweep(planned, folder, jobs, style, title=content.title or name, table=None, dry_run=dry_run, backend=backend)


@app.command(
    epilog="Examples: [bold]fedchoir reproduce fccl+/table8 --data-root ~/data --jobs 2[/] · "
    "[bold]fedchoir reproduce fccl+/table8 --scenario digits-lite --rounds 2[/] · [bold]fedchoir reproduce --list[/]"
)
def reproduce(
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="For example fccl+/table8.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the tables.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for all runs (default: runs/PAPER/TABLE).")] = None,
    jobs: Jobs = None,
    rounds: o.Rounds = None,
    seeds: Seeds = None,
    metric: o.Metric = None,
    only: Only = None,
    scenario: Scenario = None,
    public: o.Public = None,
    models: o.Models = None,
    profile: o.Profile = None,
    data_root: o.DataRoot = None,
    device: o.Device = None,
    precision: o.Precision = None,
    fused: o.Fused = False,
    checkpoint_every: o.CheckpointEvery = None,
    set_: o.Set = None,
    style: Format = Style.terminal,
    per_client: PerClient = False,
    dry_run: DryRun = False,
    status: Status = False,
    slurm: Slurm = None,
    slurm_set: SlurmSet = None,
    track: Track = None,
) -> None:
    """Run a published table and print our numbers beside it. Run it again after a crash: finished runs are skipped."""
    from fedchoir.experiments.reproduce import path_of, table_with_runs
    from fedchoir.experiments.sweep import jobs_of, read_sweep
    from fedchoir.reporting.listings import not_given_lines

    if table is None or list_:
        list_tables()
        return
    overrides = make_overrides(
        scenario, seeds, set_, rounds=rounds, metric=metric, public=public, models=models, profile=profile,
        precision=precision, fused=fused, data_root=data_root, device=device, checkpoint_every=checkpoint_every,
    )  # fmt: skip
    content, name = read_sweep(path_of(table)), table_with_runs(table)
    if seeds is None and len(content.seeds) < len(REPRODUCE_SEEDS):
        content = content.model_copy(update={"seeds": REPRODUCE_SEEDS})
    folder = out or Path("runs") / (name + overrides.tag)
    planned = tracked(jobs_of(content, folder, overrides, only or ()), track)
    if status:
        print_status(planned)
        return
    backend = slurm_backend(slurm, slurm_set, folder, jobs) if not dry_run else None
    run_sweep(
        planned, folder, jobs, style, title=content.title, table=name, dry_run=dry_run, per_client=per_client,
        backend=backend,
    )  # fmt: skip
    for line in not_given_lines(sorted({job.experiment.method for job in planned})):
        typer.echo(line, err=style is not Style.terminal)


def make_overrides(scenario: str | None, seeds: str | None, settings: list[str] | None, **values: Any) -> Overrides:
    from fedchoir.experiments.sweep import Overrides, parse_seeds

    return Overrides(
        scenario, parse_seeds(seeds) if seeds is not None else None, given(**values), parse_settings(settings)
    )


def run_sweep(
    planned: list[Job], folder: Path, jobs: str | None, style: Style, *, title: str, table: str | None,
    dry_run: bool = False, per_client: bool = False, backend: Backend | None = None,
) -> None:  # fmt: skip
    """Execute the runs that are not finished and print the table of all that are."""
    from fedchoir.experiments.longest_first import LongestFirst
    from fedchoir.experiments.placement import parse_jobs
    from fedchoir.experiments.scheduler import run_jobs, write_manifest
    from fedchoir.reporting.store import find_results
    from fedchoir.reporting.sweep_view import SweepView, summary
    from fedchoir.reporting.tables import rows

    processes = parse_jobs(jobs or "1")
    progress = (
        Console(stderr=True, emoji=False) if style is not Style.terminal else console
    )  # stdout has the table only
    progress.print(f"[bold]{title}[/] · {len(planned)} runs · {folder}/", highlight=False, soft_wrap=True)
    if dry_run:
        for job in planned:
            progress.print(job.name, markup=False, highlight=False, soft_wrap=True)
        return
    write_manifest(folder, table, title, planned)
    try:
        with SweepView(progress, planned) as view:
            order = LongestFirst() if processes == "auto" else list
            outcomes = run_jobs(planned, processes, view, backend, order)
    except KeyboardInterrupt:
        if backend is None:
            raise
        progress.print("the jobs stay in the queue: --status shows them, the same command waits for them again")
        raise typer.Exit(130) from None
    done = [outcome.job.out for outcome in outcomes if outcome.state in ("finished", "skipped")]
    if done:
        print_rows(rows(find_results(done)), style, "clients" if per_client else "accuracy")
    progress.print(summary(outcomes, folder, command()), markup=False, highlight=False, soft_wrap=True)
    if len(done) < len(outcomes):
        raise typer.Exit(130 if any(outcome.state in ("stopped", "waiting") for outcome in outcomes) else 1)


def print_rows(
    table_rows: list[Row], style: Style, view: View, target: float | None = None, compared: References | None = None
) -> None:
    """Print a table and, with ``compared``, the differences to the row of each group in it."""
    from fedchoir.reporting.tables import as_text, terminal_tables

    if style is not Style.terminal:
        typer.echo(as_text(table_rows, style.value, view, target, compared), nl=False)
        return
    print_tables(terminal_tables(table_rows, view, target, compared))


def list_tables() -> None:
    from rich.table import Table

    from fedchoir.experiments.reproduce import path_of, tables
    from fedchoir.experiments.sweep import read_sweep

    listed = Table(
        "name", "what it shows", title="published tables (fedchoir reproduce NAME)", title_justify="left",
        header_style="bold cyan",
    )  # fmt: skip
    for name in tables():
        listed.add_row(f"[bold]{name}[/]", read_sweep(path_of(name)).title)
    console.print(listed)
