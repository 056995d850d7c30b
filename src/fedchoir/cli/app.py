"""The command line. Commands end with 0, with 2 on bad input (one line says what is wrong), with 3 below
quorum, with 4 if a checkpoint could not be written, with 5 if a process of the run died."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedchoir.cli import report as cli_report
from fedchoir.cli import tables as cli_tables
from fedchoir.cli.deploy import app as flower_app
from fedchoir.utils.errors import QuorumError, StorageError, UsageError, WorkerError
from fedchoir.utils.plugins import add_plugin
from fedchoir.version import __version__

app = typer.Typer(
    name="fedchoir",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Federated learning for a choir of different voices: every participant keeps its own data and its own model.",
    epilog="Start with: [bold]fedchoir demo[/] · then: [bold]fedchoir run fccl+ --scenario digits-lite[/]",
)
data_app = typer.Typer(no_args_is_help=True, help="Look at data sets and fetch those that torchvision can.")
app.add_typer(data_app, name="data")
app.add_typer(flower_app)
console = Console()


def main() -> None:
    """The entry point of the ``fedchoir`` command."""
    try:
        app()
    except UsageError as error:
        sys.stderr.write(f"fedchoir: {error}\n")
        sys.exit(2)
    except StorageError as error:
        sys.stderr.write(f"fedchoir: stopped: {error}. The checkpoint before it is intact: --resume continues.\n")
        sys.exit(4)
    except QuorumError as error:
        sys.stderr.write(f"fedchoir: stopped: {error}. The last checkpoint is intact: --resume continues.\n")
        sys.exit(3)
    except WorkerError as error:
        sys.stderr.write(f"fedchoir: stopped: {error}. The last checkpoint is intact: --resume continues.\n")
        sys.exit(5)
    except KeyboardInterrupt:
        sys.stderr.write("\nfedchoir: interrupted. The last checkpoint is intact: --resume continues.\n")
        sys.exit(130)


def _version(wanted: bool) -> None:
    if wanted:
        console.print(f"fedchoir {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    plugin: Annotated[
        list[Path] | None, typer.Option(metavar="FILE.py", help="A file with methods of your own (FEDCHOIR_PLUGINS).")
    ] = None,
) -> None:
    for path in plugin or ():
        add_plugin(path)


@app.command(
    epilog="Examples: [bold]fedchoir run fccl+ --scenario digits-lite --rounds 5[/] · "
    "[bold]fedchoir run fedavg --models resnet10@16 --set local_epochs=2[/] · "
    "[bold]fedchoir run fccl+ --scenario my-folder/ --public photos --models resnet18,timm:convnext_atto[/] · "
    "[bold]fedchoir run experiment.toml --resume[/]"
)
def run(
    method: Annotated[
        str, typer.Argument(metavar="METHOD|FILE.toml", help="A method, or a file that describes a run.")
    ],
    scenario: Annotated[
        str | None, typer.Option(help="A scenario, or a folder: one sub-folder or .npz per client.")
    ] = None,
    public: Annotated[str | None, typer.Option(help="A public set, or a folder or .npz.")] = None,
    models: Annotated[str | None, typer.Option(help="a,b,c: one architecture per client, in turn.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds.")] = None,
    seed: Annotated[int | None, typer.Option(help="Every draw is derived from it.")] = None,
    profile: Annotated[str | None, typer.Option(help="fixed, paper or official: how ambiguities are settled.")] = None,
    data_root: Annotated[Path | None, typer.Option(help="Where data sets lie (else FEDCHOIR_DATA).")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")] = None,
    devices: Annotated[
        str | None, typer.Option(help="Several, with a process each: a number, or cuda:0,cuda:1 or cpu,cpu.")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, tf32 or bf16.")] = None,
    fused: Annotated[bool, typer.Option("--fused", help="Fused layers: our own Triton kernels, for GPUs.")] = False,
    state_budget: Annotated[
        str | None,
        typer.Option(help="Memory for clients' states (default: 2GB); beyond it those not at work lie on disk."),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the method.")
    ] = None,
    attack: Annotated[
        str | None, typer.Option(help="Rehearse hostile clients: sign_flip, noise, label_flip or nan.")
    ] = None,
    attackers: Annotated[int | None, typer.Option(help="How many clients are hostile (default: 1).")] = None,
    secure: Annotated[bool, typer.Option("--secure", help="Rehearse secure sums: the server sees only means.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the run (default: runs/…).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on after the last checkpoint of a stopped run.")] = False,
) -> None:
    """Run one method on one scenario."""
    from fedchoir.experiments.config import Experiment, parse_setting
    from fedchoir.utils.io import read_toml

    given: dict[str, Any] = {
        "scenario": scenario, "public": public, "models": models, "rounds": rounds, "seed": seed, "profile": profile,
        "data_root": data_root, "device": device, "devices": devices, "precision": precision,
        "fused": fused or None, "state_budget": state_budget, "out": out, "secure": secure or None,
    }  # fmt: skip
    values: dict[str, Any] = read_toml(Path(method)) if method.endswith(".toml") else {"method": method}
    values |= {name: value for name, value in given.items() if value is not None}
    settings = dict(parse_setting(text) for text in set_ or [])
    if attack is not None or attackers is not None:
        settings |= {"attack": attack or "sign_flip", "attackers": 1 if attackers is None else attackers}
    values["settings"] = {**values.get("settings", {}), **settings}
    execute(Experiment(**values), resume=resume)


def execute(experiment: Any, *, resume: bool = False) -> None:
    """Run with a live view and say where the files lie."""
    from fedchoir.experiments.config import make_plan
    from fedchoir.experiments.live_status import LiveStatus
    from fedchoir.experiments.run import run as run_experiment
    from fedchoir.reporting.progress import LiveProgress
    from fedchoir.reporting.tables import rows, terminal_tables
    from fedchoir.reporting.tensorboard import TensorBoard

    result = run_experiment(experiment, resume=resume, observers=[LiveProgress(console), TensorBoard(), LiveStatus()])
    for table in terminal_tables(rows([result])):
        console.print(table)
    for note in result.notes:
        console.print(f"[yellow]note:[/] {note}")
    folder = make_plan(experiment).out
    console.print(f"files: {folder}/ (result.json, events.jsonl, checkpoint/, tensorboard/)")
    console.print(
        f"to look at: [bold]fedchoir report {folder}[/] · figures: [bold]fedchoir analyse {folder}[/]", soft_wrap=True
    )


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Every draw is derived from it.")] = 0,
) -> None:
    """Four clients with four architectures learn from each other: SOLO, FedMD, FCCL and FCCL+ in a few minutes."""
    from fedchoir.cli.demo import show

    show(console, out, seed)


class What(StrEnum):
    methods = "methods"
    scenarios = "scenarios"
    models = "models"
    public = "public"


@app.command("list", epilog="Example: [bold]fedchoir list methods --options fccl+[/]")
def list_(
    what: Annotated[What | None, typer.Argument(help="What to list; everything if left out.")] = None,
    options: Annotated[str | None, typer.Option(metavar="METHOD", help="Show a method's options.")] = None,
) -> None:
    """List methods, scenarios, models and public sets."""
    from fedchoir.reporting.listings import listing, options_table

    if options is not None:
        console.print(options_table(options))
        return
    for kind in [what] if what else list(What):
        console.print(listing(kind.value))


@data_app.command("show")
def data_show(
    data_root: Annotated[Path | None, typer.Option(help="Where data sets lie (else FEDCHOIR_DATA).")] = None,
) -> None:
    """Which data sets are there, and how to get the others."""
    from fedchoir.reporting.listings import data_table

    console.print(data_table(data_root))


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(help="mnist, usps, svhn, cifar10, cifar100 or fashion-mnist.")],
    data_root: Annotated[Path | None, typer.Option(help="Where to put it (else FEDCHOIR_DATA).")] = None,
) -> None:
    """Download a data set that torchvision knows."""
    from fedchoir.data.image.datasets import fetch

    folder = fetch(name, data_root)
    console.print(f"{name} is in {folder}")


@data_app.command("check", epilog="Example: [bold]fedchoir data check my-folder/[/]")
def data_check(
    scenario: Annotated[str, typer.Argument(help="A folder with one data set per client, or a scenario.")],
    data_root: Annotated[Path | None, typer.Option(help="Where data sets lie (else FEDCHOIR_DATA).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split.")] = 0,
) -> None:
    """Load a scenario and show what each client would train and be tested on."""
    from fedchoir.data.options import DataOptions
    from fedchoir.data.scenario import load_scenario

    loaded = load_scenario(scenario, root=data_root, seed=seed, options=DataOptions())
    table = Table(title=f"{loaded.name}: {len(loaded.classes)} classes ({', '.join(loaded.classes[:12])})")
    for name in ("client", "train", "classes present", "tested at home on"):
        table.add_column(name)
    for client in loaded.clients:
        present = len(client.train.labels.unique())
        table.add_row(
            client.name, str(len(client.train)), str(present), f"{client.domain} ({len(loaded.tests[client.domain])})"
        )
    console.print(table)
    for note in loaded.notes:
        console.print(f"[yellow]note:[/] {note}")


app.command(epilog="Example: [bold]fedchoir compare runs/ --format latex > table.tex[/]")(cli_tables.compare)
app.command(epilog="Example: [bold]fedchoir sweep my-grid.toml --jobs 2 --seeds 3[/]")(cli_tables.sweep)
app.command(
    epilog="Examples: [bold]fedchoir reproduce fccl+/table8 --data-root ~/data --jobs 2[/] · "
    "[bold]fedchoir reproduce fccl+/table8 --scenario digits-lite --rounds 2[/] · [bold]fedchoir reproduce --list[/]"
)(cli_tables.reproduce)
app.command(epilog="Example: [bold]fedchoir report runs/[/]")(cli_report.report)
app.command(epilog="Example: [bold]fedchoir ui runs/[/]")(cli_report.ui)
app.command(epilog="Example: [bold]fedchoir analyse runs/my-run --format svg[/]")(cli_report.analyse)
app.command()(cli_report.doctor)


if __name__ == "__main__":
    main()
