"""data show, fetch and check."""

from typing import Annotated

import typer

from fedchoir.cli.options import DataRoot, console, parse_settings

app = typer.Typer(no_args_is_help=True, help="Show, check and download data sets.")


@app.command()
def show(data_root: DataRoot = None) -> None:
    """Show which data sets are present, and how to get the others."""
    from fedchoir.reporting.listings import data_table

    console.print(data_table(data_root))


@app.command(epilog="Example: [bold]fedchoir data fetch mnist[/]")
def fetch(
    name: Annotated[str, typer.Argument(help="mnist, usps, svhn, cifar10, cifar100 or fashion-mnist.")],
    data_root: DataRoot = None,
) -> None:
    """Download a data set that torchvision offers."""
    from fedchoir.data.image.datasets import fetch as download

    console.print(f"{name} is in {download(name, data_root)}")


@app.command(epilog="Example: [bold]fedchoir data check my-folder/[/]")
def check(
    scenario: Annotated[
        str, typer.Argument(help="A folder with one data set per client, FILE.py:FUNCTION, or a scenario.")
    ],
    data_root: DataRoot = None,
    seed: Annotated[int, typer.Option(help="Seed of the split.")] = 0,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An option of the data, such as target=NAME or modality=text."),
    ] = None,
) -> None:
    """Load a scenario and show what each client would be trained and tested on."""
    from rich.table import Table

    from fedchoir.data.options import DataOptions
    from fedchoir.data.scenario import info, load_scenario
    from fedchoir.models.check import inputs_text

    settings = parse_settings(set_)
    usual = info(scenario, DataOptions(**settings)).defaults  # those that a run would use
    known = {name: value for name, value in usual.items() if name in DataOptions.model_fields}
    if settings.get("partition") == "file":
        known.pop("clients", None)  # the file determines how many there are
    loaded = load_scenario(scenario, root=data_root, seed=seed, options=DataOptions(**{**known, **settings}))
    table = Table(
        "client", "train", "classes present", "intra-domain test set",
        title=f"{loaded.name}: {len(loaded.classes)} classes ({', '.join(loaded.classes[:12])})",
    )  # fmt: skip
    for client in loaded.clients:
        test = f"{client.domain} ({len(loaded.tests[client.domain])})"
        table.add_row(client.name, str(len(client.train)), str(len(client.train.labels.unique())), test)
    console.print(table)
    shape = f"--input {inputs_text(loaded.inputs)} --classes {len(loaded.classes)}"
    console.print(
        f"samples: {loaded.inputs}; check a model: fedchoir list models --check MODEL {shape}", soft_wrap=True
    )
    for note in loaded.notes:
        console.print(f"[yellow]note:[/] {note}")
