"""A sweep as a person watches it: how many runs are done, and how far those at work have come."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fedchoir.experiments.scheduler import Outcome
from fedchoir.experiments.sweep import Job

SAID = {"finished": "[green]finished[/]", "skipped": "[dim]was finished before[/]", "failed": "[red]failed[/]"}


class SweepView:
    """One bar for the sweep and one for each run at work; not on a terminal, a line for each run that ends."""

    def __init__(self, console: Console, jobs: Sequence[Job]) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[doing]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._all = self._progress.add_task("[bold]runs", total=len(jobs), doing="")
        self._runs: dict[str, TaskID] = {}

    def __call__(self, job: Job, said: dict[str, Any]) -> None:
        """Show news of a run, as `fedchoir.experiments.scheduler.run_jobs` reports it."""
        if said["event"] == "began":
            name = escape(job.name)
            self._runs[job.name] = self._progress.add_task(name, total=said["rounds"], completed=said["done"], doing="")
        elif said["event"] == "round" and job.name in self._runs:
            doing = " · ".join(f"{k} {said[k]:.1f} %" for k in ("intra", "inter") if said[k] is not None)
            self._progress.update(self._runs[job.name], advance=1, doing=doing)
        elif said["event"] in SAID:
            if job.name in self._runs:
                self._progress.remove_task(self._runs.pop(job.name))
            self._progress.advance(self._all)
            took = f" in {said['seconds']:.0f} s" if said["event"] == "finished" else ""
            why = f": {escape(said['why'])}" if said.get("why") else ""
            line = f"{escape(job.name)} {SAID[said['event']]}{took}{why}"
            self._progress.console.print(line, highlight=False, soft_wrap=True)

    def __enter__(self) -> SweepView:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def summary(outcomes: Sequence[Outcome], out: Path) -> str:
    """What a sweep ends with: how many runs, and where to look when something went wrong."""
    done, before, lost = (sum(o.state == state for o in outcomes) for state in ("finished", "skipped", "failed"))
    text = f"{done} finished, {before} were finished before, {lost} failed · {out}/"
    failed = [o for o in outcomes if o.state == "failed"]
    return "\n".join([text, *(f"failed: {o.job.name}" + (f" (log: {o.log})" if o.log else "") for o in failed)])
