"""export and predict: use a trained model outside of a federation."""

import csv
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedchoir.cli.options import console

app = typer.Typer()

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, or the work folder of a node.")]
ClientName = Annotated[str | None, typer.Option("--client", help="Whose model (not needed if there is only one).")]
Best = Annotated[bool, typer.Option("--best", help="The client's best round by its validation samples.")]


@app.command(epilog="Example: [bold]fedchoir export runs/my-run --client cleveland --format onnx[/]")
def export(
    folder: Run,
    client: ClientName = None,
    kind: Annotated[
        str, typer.Option("--format", help="torch, safetensors (weights), onnx or torch-export (with preprocessing).")
    ] = "safetensors",
    best: Best = False,
    out: Annotated[Path | None, typer.Option(help="The file to write (default: RUN/export/CLIENT.…).")] = None,
) -> None:
    """Write a client's trained model to a file, with a model card."""
    from fedchoir.experiments.export import export as write
    from fedchoir.experiments.trained import load_trained

    for path in write(load_trained(folder, client, best=best), kind, out):
        console.print(f"wrote {escape(str(path))}", soft_wrap=True)


@app.command(epilog="Example: [bold]fedchoir predict runs/my-run --client cleveland new-patients.csv > out.csv[/]")
def predict(
    folder: Run,
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A folder of images, a .csv, .parquet, .jsonl or .npz.")],
    client: ClientName = None,
    best: Best = False,
) -> None:
    """Predict classes for new samples: a CSV with class and probabilities on standard output."""
    from fedchoir.experiments.trained import load_trained
    from fedchoir.utils.errors import UsageError

    trained = load_trained(folder, client, best=best)
    if not data.exists():
        raise UsageError(f"DATA {data}: there is no such folder or file")
    names, inputs = trained.preprocessing.read(data)
    if not names:
        raise UsageError(f"DATA {data} holds no samples")
    probabilities = trained.probabilities(inputs)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["sample", "class", *(f"p({name})" for name in trained.classes)])
    for name, row in zip(names, probabilities.tolist(), strict=True):
        best_class = trained.classes[max(range(len(row)), key=row.__getitem__)]
        writer.writerow([name, best_class, *(f"{p:.6f}" for p in row)])
