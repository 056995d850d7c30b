"""A run as a person watches it: rounds, who is doing what, how good it is, how long it will take."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as Remaining

from fedchoir.core.federation_spec import FederationSpec
from fedchoir.core.result import Event
from fedchoir.experiments.config import Plan

PHASES = {
    "speak": "speaks about the public set",
    "listen": "learns from the others",
    "practise": "practises at home",
    "pretrain": "trains alone first",
    "upload": "sends its weights",
    "download": "takes the global weights",
    "evaluate": "is tested",
}


class LiveProgress:
    """An `Observer` with a rich progress bar. Not on a terminal it prints nothing."""

    def __init__(self, console: Console | None = None) -> None:
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("rounds ·"),
            TimeElapsedColumn(),
            TextColumn("· left"),
            Remaining(),
            TextColumn("· [green]{task.fields[accuracy]}[/] [dim]{task.fields[doing]}"),
            console=console,
            disable=console is not None and not console.is_terminal,
        )
        self._task: TaskID | None = None

    def began(self, plan: Plan, task: FederationSpec, done: list[Event]) -> None:
        self._progress.start()
        self._task = self._progress.add_task(
            plan.experiment.method, total=task.rounds, completed=len(done), accuracy="", doing=""
        )
        if done:
            self._show(done[-1])

    def client(self, name: str, phase: str) -> None:
        if self._task is not None:
            self._progress.update(self._task, doing=f"{name} {PHASES.get(phase, phase)}")

    def round(self, event: Event) -> None:
        if self._task is not None:
            self._progress.advance(self._task)
            self._show(event)

    def ended(self) -> None:
        if self._task is not None:
            self._progress.update(self._task, doing="")
        self._progress.stop()

    def _show(self, event: Event) -> None:
        if self._task is not None and event["intra_avg"] is not None:
            inter = "" if event["inter_avg"] is None else f" · inter {event['inter_avg']:.1f} %"
            left_out = f" · [red]left out {len(event['left_out'])}[/]" if event["left_out"] else ""
            cost = f" · ε {max(event['privacy']['epsilon'].values()):.2f}" if "privacy" in event else ""
            self._progress.update(self._task, accuracy=f"intra {event['intra_avg']:.1f} %{inter}{cost}{left_out}")
