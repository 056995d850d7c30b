"""The progress of a sweep: how many runs are finished, and the rounds of those that are running."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedchoir.experiments.scheduler import Outcome
from fedchoir.experiments.sweep import Job
from fedchoir.experiments.sweep_state import STATES as RUN_STATES
from fedchoir.experiments.sweep_state import RunState

STATES = {
    "finished": "[green]finished[/]",
    "skipped": "[dim]was finished before[/]",
    "failed": "[red]failed[/]",
    "stopped": "[yellow]stopped[/]",
}
"""How a run ended."""


class SweepView:
    """One bar for the sweep and one for each running run; without a terminal, one line for each run that ends."""

    def __init__(self, console: Console, jobs: Sequence[Job]) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[accuracy]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._all = self._progress.add_task("[bold]runs", total=len(jobs), accuracy="")
        self._runs: dict[str, TaskID] = {}

    def __call__(self, job: Job, report: dict[str, Any]) -> None:
        """Show what `fedchoir.experiments.scheduler.run_jobs` reports about a run."""
        state, name = report["event"], escape(job.name)
        if state == "began":
            rounds, done = report["rounds"], report["done"]
            self._runs[job.name] = self._progress.add_task(name, total=rounds, completed=done, accuracy="")
        elif state == "round" and job.name in self._runs:
            accuracy = " · ".join(f"{k} {report[k]:.1f} %" for k in ("intra", "inter") if report[k] is not None)
            self._progress.update(self._runs[job.name], advance=1, accuracy=accuracy)
        elif state == "retried":
            self._leave(job, f"{name} [yellow]starts again[/]: {escape(report['why'])}")
        elif state in STATES:
            self._progress.advance(self._all)
            seconds = f" in {report['seconds']:.0f} s" if state == "finished" else ""
            why = f": {escape(report['why'])}" if report.get("why") else ""
            self._leave(job, f"{name} {STATES[state]}{seconds}{why}")

    def _leave(self, job: Job, line: str) -> None:
        """Remove the bar of a run and print a line about it."""
        if job.name in self._runs:
            self._progress.remove_task(self._runs.pop(job.name))
        self._progress.console.print(line, highlight=False, soft_wrap=True)

    def __enter__(self) -> SweepView:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def summary(outcomes: Sequence[Outcome], out: Path, command: str = "the same command") -> str:
    """The last lines of a sweep: how many runs finished or failed, and the logs of those that failed. ``command``
    continues those that were stopped."""
    states = [outcome.state for outcome in outcomes]
    stopped, waiting = states.count("stopped"), states.count("waiting")
    text = "{} finished, {} were finished before, {} failed".format(*map(states.count, STATES))
    if stopped or waiting:
        text += f", {stopped} stopped, {waiting} not started; to continue: {command}"
    failed = [f"failed: {o.job.name}" + (f" (log: {o.log})" if o.log else "") for o in outcomes if o.state == "failed"]
    return "\n".join([f"{text} · {out}/", *failed])


COLOURS = {"finished": "green", "running": "cyan", "failed": "red"}


def state_table(states: Sequence[RunState]) -> Table:
    """One row for each run: its state, rounds and last accuracies."""
    table = Table("run", "state", "round", "intra %", "inter %", "note", header_style="bold cyan")
    for run in states:
        rounds = f"{run.done} of {'?' if run.planned is None else run.planned}"
        scores = ["–" if value is None else f"{value:.2f}" for value in (run.intra, run.inter)]
        colour = COLOURS.get(run.state, "default")
        table.add_row(escape(run.job.name), f"[{colour}]{run.state}[/]", rounds, *scores, escape(run.note))
    return table


def state_line(states: Sequence[RunState]) -> str:
    """How many runs are in which state."""
    names = [run.state for run in states]
    return ", ".join(f"{names.count(state)} {state}" for state in RUN_STATES if state in names)
