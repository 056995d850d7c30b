"""The progress bar of a run: rounds, accuracy, current client and remaining time."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedchoir.core.federation_spec import FederationSpec
from fedchoir.core.metric_summary import headline
from fedchoir.core.metrics import METRICS
from fedchoir.core.result import Event
from fedchoir.experiments.config import Plan
from fedchoir.experiments.run import Observer


def activity(client: str, phase: str) -> str:
    """
    >>> activity("mnist", "local_update")
    'mnist: local update'
    """
    return f"{client}: {phase.replace('_', ' ')}"


class LiveProgress(Observer):
    """A rich progress bar. It prints nothing if the console is not a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]} ·"),
            TimeElapsedColumn(),
            TextColumn("· left"),
            TimeRemainingColumn(),
            TextColumn("· [green]{task.fields[accuracy]}[/] [dim]{task.fields[activity]}"),
            console=console,
            disable=console is not None and not console.is_terminal,
        )
        self._bar = self._progress.add_task("", start=False, accuracy="", activity="", unit="")

    def loading(self, done: int, total: int, name: str) -> None:
        if not self._progress.live.is_started:
            self._progress.start()
            self._progress.start_task(self._bar)
        self._progress.update(self._bar, description=f"reading {name}", total=total, completed=done, unit="samples")

    def began(self, plan: Plan, spec: FederationSpec, done: list[Event]) -> None:
        self._progress.start()
        self._progress.reset(self._bar)
        self._progress.update(
            self._bar, description=plan.experiment.method, total=spec.rounds, completed=len(done), unit="rounds"
        )
        if done:
            self._show(done[-1])

    def client(self, name: str, phase: str) -> None:
        self._progress.update(self._bar, activity=activity(name, phase))

    def round(self, event: Event) -> None:
        self._progress.advance(self._bar)
        self._show(event)

    def ended(self) -> None:
        self._progress.update(self._bar, activity="")
        self._progress.stop()

    def _show(self, event: Event) -> None:
        name, intra, inter = headline(event)
        if intra is None:
            return
        metric = METRICS[name]
        title = "" if name == "accuracy" else f"{metric.title} "
        others = "" if inter is None else f" · inter {metric.text(inter)}"
        left_out = f" · [red]left out {len(event['left_out'])}[/]" if event["left_out"] else ""
        epsilon = f" · ε {max(event['privacy']['epsilon'].values()):.2f}" if "privacy" in event else ""
        self._progress.update(self._bar, accuracy=f"{title}intra {metric.text(intra)}{others}{epsilon}{left_out}")
