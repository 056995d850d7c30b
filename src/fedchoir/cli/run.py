"""run, demo and list."""

import shutil
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fedchoir.cli import options as o
from fedchoir.cli.options import console, given, parse_settings, print_results

app = typer.Typer()

DEMO: dict[str, dict[str, Any]] = {
    "solo": {},
    "fedmd": {},
    "fccl": {"pretrain_epochs": 8},  # the paper's 50 epochs would take longer than all the others together
    "fccl+": {},
}
DEMO_INTRODUCTION = (
    "[bold]Four clients, four kinds of digits, four architectures.[/] No image and no weight leaves a client: "
    "they learn from each other's outputs on a public set of photographs.\n"
)
DEMO_CAUTION = (
    "[bold]How to read this:[/] one seed and tiny models are no ranking of the methods. Part of FCCL+'s gain over SOLO "
    "comes from each client's own teacher, not from the other clients (--set use_fccm=false --set use_fisl=false shows "
    "how much). The papers' tables: fedchoir reproduce fccl+/table8."
)


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
    scenario: o.Scenario = None,
    public: o.Public = None,
    models: o.Models = None,
    rounds: o.Rounds = None,
    seed: Annotated[int | None, typer.Option(help="All random draws are derived from it.")] = None,
    profile: o.Profile = None,
    data_root: o.DataRoot = None,
    device: o.Device = None,
    devices: Annotated[
        str | None, typer.Option(help="Several, one process each: a number, or cuda:0,cuda:1 or cpu,cpu.")
    ] = None,
    precision: o.Precision = None,
    fused: o.Fused = False,
    state_budget: Annotated[
        str | None, typer.Option(help="Memory for clients' states (default: 2GB); the rest is kept on disk.")
    ] = None,
    set_: o.Set = None,
    attack: Annotated[
        str | None, typer.Option(help="Simulate hostile clients: sign_flip, noise, label_flip or nan.")
    ] = None,
    attackers: Annotated[int | None, typer.Option(help="Number of hostile clients (default: 1).")] = None,
    secure: Annotated[bool, typer.Option("--secure", help="Secure aggregation: the server sees only means.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the run (default: runs/…).")] = None,
    resume: o.Resume = False,
) -> None:
    """Run one method on one scenario."""
    from fedchoir.experiments.config import Experiment, make_plan
    from fedchoir.experiments.live_status import LiveStatus
    from fedchoir.experiments.run import run as run_experiment
    from fedchoir.reporting.progress import LiveProgress
    from fedchoir.reporting.tensorboard import TensorBoard
    from fedchoir.utils.io import read_toml

    values: dict[str, Any] = read_toml(Path(method)) if method.endswith(".toml") else {"method": method}
    values |= given(
        scenario=scenario, public=public, models=models, rounds=rounds, seed=seed, profile=profile, out=out,
        data_root=data_root, device=device, devices=devices, precision=precision, fused=fused,
        state_budget=state_budget, secure=secure,
    )  # fmt: skip
    settings = parse_settings(set_)
    if attack is not None or attackers is not None:
        settings |= {"attack": attack or "sign_flip", "attackers": 1 if attackers is None else attackers}
    experiment = Experiment(**{**values, "settings": {**values.get("settings", {}), **settings}})
    result = run_experiment(experiment, resume=resume, observers=[LiveProgress(console), TensorBoard(), LiveStatus()])
    print_results([result])
    for note in result.notes:
        console.print(f"[yellow]note:[/] {note}")
    folder = make_plan(experiment).out
    console.print(f"files: {folder}/ (result.json, events.jsonl, checkpoint/, tensorboard/)")
    console.print(
        f"next: [bold]fedchoir report {folder}[/] · figures: [bold]fedchoir analyse {folder}[/]", soft_wrap=True
    )


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="All random draws are derived from it.")] = 0,
) -> None:
    """Compare SOLO, FedMD, FCCL and FCCL+ on four clients with four architectures, in a few minutes."""
    from fedchoir.experiments.config import Experiment
    from fedchoir.experiments.run import run as run_experiment
    from fedchoir.reporting.progress import LiveProgress
    from fedchoir.reporting.tensorboard import TensorBoard

    console.print(DEMO_INTRODUCTION)
    results = []
    for method, settings in DEMO.items():
        folder = out / f"{method}-seed{seed}"
        shutil.rmtree(folder, ignore_errors=True)  # a demo starts from the beginning
        experiment = Experiment(method=method, scenario="digits-lite", seed=seed, out=folder, settings=settings)
        results.append(run_experiment(experiment, observers=[LiveProgress(console), TensorBoard()]))
    console.print()
    print_results(results)
    console.print(DEMO_CAUTION, highlight=False)
    console.print(f"\nfiles: {out}/ · more: [bold]fedchoir report {out}[/] or [bold]fedchoir ui {out}[/]")


class What(StrEnum):
    methods = "methods"
    scenarios = "scenarios"
    models = "models"
    public = "public"


@app.command(
    "list",
    epilog="Examples: [bold]fedchoir list methods[/] · "
    "[bold]fedchoir list --options fccl+ --scenario digits --profile official[/]",
)
def list_(
    what: Annotated[What | None, typer.Argument(help="What to list (default: everything).")] = None,
    options: Annotated[str | None, typer.Option(metavar="METHOD", help="Show a method's options instead.")] = None,
    scenario: Annotated[str, typer.Option(help="With --options: values in this scenario.")] = "digits-lite",
    profile: Annotated[str, typer.Option(help="With --options: values of this profile.")] = "fixed",
) -> None:
    """List methods, scenarios, models and public sets, or the options that a method would run with."""
    from fedchoir.reporting.listings import listing, options_table

    if options is not None:
        console.print(options_table(options, scenario, profile))
        return
    for kind in [what] if what else list(What):
        console.print(listing(kind.value))
