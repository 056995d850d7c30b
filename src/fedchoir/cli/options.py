"""Options that several commands have, and the console they print to."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedchoir.utils.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from fedchoir.core.result import Result

console = Console(emoji=False)  # ":CD:" in a fingerprint is no emoji
WIDEST = 1000  # characters of a table's line

Scenario = Annotated[str | None, typer.Option(help="A scenario, or a folder with one sub-folder or .npz per client.")]
Public = Annotated[str | None, typer.Option(help="A public set, condensed, or a folder or .npz.")]
Models = Annotated[
    str | None, typer.Option(help="a,b,c: one model per client, repeated in turn: NAME, timm:NAME, FILE.py:FACTORY.")
]
Rounds = Annotated[int | None, typer.Option(help="Communication rounds.")]
Profile = Annotated[str | None, typer.Option(help="fixed, paper, official or official-plus.")]
DataRoot = Annotated[Path | None, typer.Option(help="Folder of the data sets (default: FEDCHOIR_DATA).")]
Cache = Annotated[Path | None, typer.Option(help="Folder for decoded images (default: only for sets over 1 GB).")]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Precision = Annotated[str | None, typer.Option(help="fp32, tf32 or bf16.")]
Fused = Annotated[bool, typer.Option("--fused", help="Fused layers: Triton kernels, for GPUs.")]
Metric = Annotated[
    str | None, typer.Option(help="Headline: accuracy, balanced_accuracy, macro_f1, auroc, average_precision, brier…")
]
CheckpointEvery = Annotated[
    str | None,
    typer.Option(
        metavar="auto|N|never",
        help="Rounds between checkpoints, which are written in the background. auto: they cost under 2 % of the time; "
        "never: only one after the last round (default: auto).",
    ),
]
Compress = Annotated[
    str | None, typer.Option(metavar="CHAIN", help="Compress payloads: fp16, int8, topk:0.1, lowrank:8, zstd, a+b.")
]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the method.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue a stopped run from its last checkpoint.")]
Track = Annotated[
    list[str] | None,
    typer.Option(metavar="TRACKER", help="Also send the curves to wandb or mlflow; may be given twice."),
]
FederationArgument = Annotated[
    Path, typer.Argument(metavar="FEDERATION.toml", help="The file of the federation (docs/deploy.md).")
]
Folders = Annotated[list[Path], typer.Argument(help="Folders of runs, or folders of such folders.")]


def parse_settings(texts: list[str] | None) -> dict[str, Any]:
    """The values of ``--set``."""
    from fedchoir.experiments.config import parse_setting

    return dict(parse_setting(text) for text in texts or [])


def given(**values: Any) -> dict[str, Any]:
    """The options that the user gave: those that are neither None nor an absent flag."""
    return {name: value for name, value in values.items() if value is not None and value is not False}


def print_results(results: Iterable[Result]) -> None:
    from fedchoir.reporting.tables import rows, terminal_tables

    print_tables(terminal_tables(rows(list(results))))


def print_tables(tables: Iterable[Table]) -> None:
    """Print tables of numbers. Rich cuts what is wider than the terminal, and a number without its last digits is
    wrong: a table that cannot be folded into the terminal has long lines. So have tables in a file or a pipe."""
    for table in tables:
        size = table.__rich_measure__(console, console.options.update(max_width=WIDEST))
        if not console.is_terminal or size.minimum > console.width:
            table.width = size.maximum
        console.print(table, crop=False)


def print_plain(text: str) -> None:
    """Print without markup, colours or line breaks of our own."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def require_flower() -> None:
    try:
        import flwr  # noqa: F401
    except ModuleNotFoundError:
        raise UsageError("Flower is not installed: pip install 'fedchoir[flower]'") from None


def command(*more: str) -> str:
    """The command that was typed, with these arguments as well."""
    return shlex.join(["fedchoir", *sys.argv[1:], *(text for text in more if text not in sys.argv)])
