"""``make demo``: four clients with four architectures, four methods, one table."""

from __future__ import annotations

import shutil
from pathlib import Path

from rich.console import Console

from fedchoir.experiment import Experiment
from fedchoir.federation.result import Result
from fedchoir.report.progress import LiveProgress
from fedchoir.report.tables import rows, terminal_tables
from fedchoir.runner import run

METHODS = ("solo", "fedmd", "fccl", "fccl+")


def show(console: Console, out: Path, seed: int) -> list[Result]:
    """Run the four methods on `digits-lite` and put them side by side."""
    console.print(
        "[bold]Four clients, four kinds of digits, four architectures.[/] No image and no weight leaves a client: they "
        "learn from what the others say about a public set of photographs.\n"
    )
    results = []
    for method in METHODS:
        folder = out / f"{method}-seed{seed}"
        shutil.rmtree(folder, ignore_errors=True)  # a demo starts afresh
        experiment = Experiment(method=method, scenario="digits-lite", seed=seed, out=folder)
        results.append(run(experiment, observers=[LiveProgress(console)]))
    console.print()
    for table in terminal_tables(rows(results)):
        console.print(table)
    return results
