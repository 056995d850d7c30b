"""demo: four hospitals with four models, then four kinds of digits."""

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedchoir.cli.options import console, print_results

if TYPE_CHECKING:
    from fedchoir.core.result import Result

app = typer.Typer()

Runs = dict[str, dict[str, Any]]
"""Method → its settings."""

HOSPITALS: Runs = {"solo": {}, "fedmd": {}, "fccl+": {}}
HOSPITALS_TITLE = (
    "[bold]Four hospitals, four models.[/] Cleveland has a logistic regression, Hungary an MLP, Switzerland a residual "
    "MLP and Long Beach a transformer. No patient and no weight leaves a hospital: they learn from each other's "
    "predictions for made-up patients, drawn from the columns' ranges.\n"
)
_SHORT = {"private": 200, "public_size": 256, "local_epochs": 3, "lr_schedule": "constant"}
DIGITS: Runs = {"solo": _SHORT, "choir-v1": {**_SHORT, "shared_model": "simple_cnn@16"}}
DIGITS_MODELS = ("resnet10@8", "simple_cnn@16", "vgg9@8", "simple_cnn@8")
DIGITS_ROUNDS = 4
DIGITS_TITLE = (
    "\n[bold]Four kinds of digits, four convolutional networks.[/] They learn from each other's outputs on public "
    "photographs.{more}\n"
)
SHARED_MODEL = " With Choir-v1 they also average one small network that all of them share."
FULL: Runs = {
    "solo": {},
    "fedmd": {},
    "fccl": {"pretrain_epochs": 8},  # the paper's 50 epochs would take longer than all the others together
    "fccl+": {},
}
CAUTION = (
    "[bold]How to read this:[/] one seed and small models are no ranking of the methods. intra: accuracy on a client's "
    "own kind of data; inter: on the other clients' kinds. Choir-v1 also augments its images and predicts together "
    "with the shared network: most of its gain comes from that (docs/choir-v1.md). The papers' tables: fedchoir "
    "reproduce fccl+/table8."
)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="All random draws are derived from it.")] = 0,
    full: Annotated[
        bool, typer.Option("--full", help="SOLO, FedMD, FCCL and FCCL+ on digits at full length, in minutes.")
    ] = False,
) -> None:
    """Clients with different models learn from each other: hospitals, then digits, in about a minute."""
    from fedchoir.reporting.page import write_report

    start = time.monotonic()
    if full:
        console.print(DIGITS_TITLE.format(more=""))
        print_results(run_all(FULL, "digits-lite", out, seed))
    else:
        console.print(HOSPITALS_TITLE)
        print_results(run_all(HOSPITALS, "heart", out, seed))
        console.print(DIGITS_TITLE.format(more=SHARED_MODEL))
        print_results(run_all(DIGITS, "digits-lite", out, seed, rounds=DIGITS_ROUNDS, models=DIGITS_MODELS))
    console.print(CAUTION, highlight=False)
    report = write_report([out], None)
    console.print(f"\n{time.monotonic() - start:.0f} s · report: {report}", soft_wrap=True)
    console.print(
        "next, with your own data: [bold]fedchoir run fccl+ --scenario FOLDER[/] (one .csv, .npz or folder of images "
        "for each client)",
        soft_wrap=True,
    )


def run_all(
    runs: Runs, scenario: str, out: Path, seed: int, rounds: int | None = None, models: tuple[str, ...] | None = None
) -> "list[Result]":
    """Run the methods one after the other, each from the beginning."""
    from fedchoir.experiments.config import Experiment
    from fedchoir.experiments.run import run
    from fedchoir.experiments.tracking import TensorBoard
    from fedchoir.reporting.progress import LiveProgress

    results = []
    for method, settings in runs.items():
        folder = out / f"{scenario}-{method}-seed{seed}"
        shutil.rmtree(folder, ignore_errors=True)
        experiment = Experiment(
            method=method, scenario=scenario, seed=seed, rounds=rounds, models=models, out=folder, settings=settings
        )
        results.append(run(experiment, observers=[LiveProgress(console), TensorBoard()]))
    console.print()
    return results
