"""``fedchoir analyse``: computes the figures of a run and writes each as data and as an image to ``DIR/analysis``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedchoir.reporting import figures
from fedchoir.reporting.analysis.compute import ANALYSES, NotAvailable
from fedchoir.reporting.analysis.load import FinishedRun
from fedchoir.reporting.page import read_index
from fedchoir.utils.errors import UsageError
from fedchoir.utils.io import atomic_write_json

Format = Literal["png", "svg"]


@dataclass(frozen=True)
class Outcome:
    """The file of one analysis, or the reason why there is none."""

    name: str
    file: str = ""
    why_not: str = ""


def analyse(
    run: FinishedRun,
    *,
    only: Sequence[str] | None = None,
    kind: Format = "png",
    report: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Compute and draw the figures of a run, all or ``only`` some; existing figures stay."""
    unknown = [name for name in only or [] if name not in ANALYSES]
    if unknown:
        raise UsageError(f"there is no analysis {unknown[0]!r}; known: {', '.join(ANALYSES)}")
    folder = run.folder / "analysis"
    folder.mkdir(exist_ok=True)
    files = {item["name"]: item["file"] for item in read_index(folder)}
    outcomes = []
    for name in [name for name in ANALYSES if not only or name in only]:
        outcomes.append(_analyse(run, name, folder, kind))
        files[name] = outcomes[-1].file
        report(outcomes[-1])
    index = [
        {"name": name, "file": files[name], "title": analysis.title, "caption": analysis.caption}
        for name, analysis in ANALYSES.items()
        if files.get(name) and (folder / files[name]).is_file()
    ]
    atomic_write_json(folder / "index.json", index)
    return outcomes


def _analyse(run: FinishedRun, name: str, folder: Path, kind: Format) -> Outcome:
    analysis = ANALYSES[name]
    try:
        data = analysis.compute(run)
    except NotAvailable as reason:
        return Outcome(name, why_not=str(reason))
    atomic_write_json(folder / f"{name}.json", data)
    figures.save(analysis.draw, data, folder / f"{name}.{kind}")
    return Outcome(name, file=f"{name}.{kind}")
