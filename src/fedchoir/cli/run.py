"""run, warmup and list."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fedchoir.cli import options as o
from fedchoir.cli.options import console, given, parse_settings, print_plain, print_results

app = typer.Typer()


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
    weights: Annotated[
        str | None, typer.Option(help="File(s) that models start from: one for all, or a,b,none per client.")
    ] = None,
    rounds: o.Rounds = None,
    seed: Annotated[int | None, typer.Option(help="All random draws are derived from it.")] = None,
    metric: o.Metric = None,
    profile: o.Profile = None,
    data_root: o.DataRoot = None,
    cache: o.Cache = None,
    device: o.Device = None,
    devices: Annotated[
        str | None, typer.Option(help="Several, one process each: a number, or cuda:0,cuda:1 or cpu,cpu.")
    ] = None,
    precision: o.Precision = None,
    fused: o.Fused = False,
    state_budget: Annotated[
        str | None, typer.Option(help="Memory for clients' states (default: 2GB); the rest is kept on disk.")
    ] = None,
    pretrained: Annotated[
        Path | None, typer.Option(help="Folder of pretrained client models that several runs share.")
    ] = None,
    checkpoint_every: o.CheckpointEvery = None,
    compress: o.Compress = None,
    set_: o.Set = None,
    attack: Annotated[
        str | None, typer.Option(help="Simulate hostile clients: sign_flip, noise, label_flip or nan.")
    ] = None,
    attackers: Annotated[int | None, typer.Option(help="Number of hostile clients (default: 1).")] = None,
    secure: Annotated[bool, typer.Option("--secure", help="Secure aggregation: the server sees only means.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the run (default: runs/…).")] = None,
    resume: o.Resume = False,
    track: o.Track = None,
) -> None:
    """Run one method on one scenario."""
    from fedchoir.experiments.config import Experiment, make_plan, read_values
    from fedchoir.experiments.live_status import LiveStatus
    from fedchoir.experiments.run import run as run_experiment
    from fedchoir.experiments.tracking import make_trackers
    from fedchoir.reporting.progress import LiveProgress

    values: dict[str, Any] = read_values(Path(method)) if method.endswith(".toml") else {"method": method}
    values |= given(
        scenario=scenario, public=public, models=models, weights=weights, rounds=rounds, seed=seed, profile=profile,
        out=out, data_root=data_root, cache=cache, device=device, devices=devices, precision=precision, fused=fused,
        state_budget=state_budget, secure=secure, metric=metric, pretrained=pretrained,
        checkpoint_every=checkpoint_every, compress=compress,
    )  # fmt: skip
    settings = parse_settings(set_)
    if attack is not None or attackers is not None:
        settings |= {"attack": attack or "sign_flip", "attackers": 1 if attackers is None else attackers}
    experiment = Experiment(**{**values, "settings": {**values.get("settings", {}), **settings}})
    observers = [LiveProgress(console), *make_trackers(["tensorboard", *(track or [])]), LiveStatus()]
    result = run_experiment(experiment, resume=resume, observers=observers)
    print_results([result])
    folder = make_plan(experiment).out
    console.print(f"files: {folder}/ (result.json, events.jsonl, checkpoint/, tensorboard/)")
    console.print(
        f"next: [bold]fedchoir report {folder}[/] · figures: [bold]fedchoir analyse {folder}[/]", soft_wrap=True
    )


@app.command(
    epilog="Example: [bold]fedchoir warmup fccl+ --scenario digits --precision bf16 --devices cuda:0,cuda:0[/]"
)
def warmup(
    method: Annotated[
        str, typer.Argument(metavar="METHOD|FILE.toml", help="The method or file of the run to come.")
    ] = "fccl+",
    scenario: o.Scenario = None,
    public: o.Public = None,
    models: o.Models = None,
    profile: o.Profile = None,
    data_root: o.DataRoot = None,
    cache: o.Cache = None,
    device: o.Device = None,
    devices: Annotated[
        str | None, typer.Option(help="As in the run to come: several processes compile at the same time.")
    ] = None,
    precision: o.Precision = None,
    set_: o.Set = None,
) -> None:
    """Compile the kernels of a run with --fused, so that its first round need not wait for them. They are kept in
    $FEDCHOIR_CACHE, else ~/.cache/fedchoir, for each version and kind of GPU. On a CPU there is nothing to do."""
    from fedchoir.experiments.config import Experiment, read_values
    from fedchoir.experiments.warmup import warm_up

    values: dict[str, Any] = read_values(Path(method)) if method.endswith(".toml") else {"method": method}
    values |= given(
        scenario=scenario, public=public, models=models, profile=profile, data_root=data_root, cache=cache,
        device=device, devices=devices, precision=precision,
    )  # fmt: skip
    settings = {**values.get("settings", {}), **parse_settings(set_)}
    print_plain(warm_up(Experiment(**{**values, "settings": settings})))


class What(StrEnum):
    methods = "methods"
    scenarios = "scenarios"
    models = "models"
    public = "public"


@app.command(
    "list",
    epilog="Examples: [bold]fedchoir list methods[/] · "
    "[bold]fedchoir list --options fccl+ --scenario digits --profile official[/] · "
    r"[bold]fedchoir list models --check my_net.py:build --classes 2 --input 3x64x64[/]",
)
def list_(
    what: Annotated[What | None, typer.Argument(help="What to list (default: everything).")] = None,
    options: Annotated[str | None, typer.Option(metavar="METHOD", help="Show a method's options instead.")] = None,
    scenario: Annotated[str, typer.Option(help="With --options: values in this scenario.")] = "digits-lite",
    profile: Annotated[str, typer.Option(help="With --options: values of this profile.")] = "fixed",
    public: Annotated[
        str | None, typer.Option(help="With --options: on this public set; condensed has options of its own.")
    ] = None,
    check: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Build a model, such as my_net.py:build, and measure it.")
    ] = None,
    classes: Annotated[int, typer.Option(min=1, help="With --check: number of classes.")] = 10,
    input_: Annotated[str, typer.Option("--input", help="With --check: 3x32x32, 13, 9x128 or text:50x20000.")] = (
        "3x32x32"
    ),
    device: o.Device = None,
) -> None:
    """List methods, scenarios, models and public sets, the options of a method, or what a model of yours needs."""
    from fedchoir.reporting.listings import listing, model_table, not_given_lines, options_table

    if check is not None:
        console.print(model_table(check, classes, input_, device or "auto"))
        return
    if options is not None:
        console.print(options_table(options, scenario, profile, public))
        for line in not_given_lines([options]):
            console.print(line, markup=False, highlight=False)
        return
    for kind in [what] if what else list(What):
        console.print(listing(kind.value))
