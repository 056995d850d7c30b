"""``make demo``: four clients with four architectures, four methods, one table."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from rich.console import Console

from fedchoir.core.result import Result
from fedchoir.experiments.config import Experiment
from fedchoir.experiments.run import run
from fedchoir.reporting.progress import LiveProgress
from fedchoir.reporting.tables import rows, terminal_tables
from fedchoir.reporting.tensorboard import TensorBoard

METHODS: dict[str, dict[str, Any]] = {
    "solo": {},
    "fedmd": {},
    "fccl": {"pretrain_epochs": 8},  # the paper's 50 epochs would take longer than all the rest
    "fccl+": {},
}
INTRODUCTION = (
    "[bold]Four clients, four kinds of digits, four architectures.[/] No image and no weight leaves a client: "
    "they learn from what the others say about a public set of photographs.\n"
)
CAUTION = (
    "[bold]What this shows:[/] one seed, a few minutes, tiny models: it is no ranking of the methods. Part of FCCL+'s "
    "lead over SOLO comes from each client's own teacher and not from the others (--set use_fccm=false --set "
    "use_fisl=false shows how much). The papers' tables: fedchoir reproduce fccl+/table8."
)


def show(console: Console, out: Path, seed: int) -> list[Result]:
    """Run the four methods on `digits-lite` and put them side by side."""
    console.print(INTRODUCTION)
    results = []
    for method, settings in METHODS.items():
        folder = out / f"{method}-seed{seed}"
        shutil.rmtree(folder, ignore_errors=True)  # a demo starts afresh
        experiment = Experiment(method=method, scenario="digits-lite", seed=seed, out=folder, settings=settings)
        results.append(run(experiment, observers=[LiveProgress(console), TensorBoard()]))
    console.print()
    for table in terminal_tables(rows(results)):
        console.print(table)
    console.print(CAUTION, highlight=False)
    console.print(f"\nfiles: {out}/ · look closer: [bold]fedchoir report {out}[/] or [bold]fedchoir ui {out}[/]")
    return results
