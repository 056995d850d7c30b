"""The page of results, made from the runs that are kept under ``results/``: no number in it is typed.

    python -m fedchoir.reporting.results_page results docs/results.md

Every folder of ``results/`` is a section: ``about.toml`` says what it is and how to run it again, ``runs/`` holds the
``result.json`` and ``experiment.toml`` of every run, and its rounds where they are drawn (see `fedchoir.reporting.archive`).
``sweep.toml`` has the rows that were run, ``open.toml``, where there is one, those that would answer what is left open.
``summary.md`` opens the page; its numbers are found in the runs like those of the readings.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from fedchoir.core.result import Result
from fedchoir.experiments.sweep import read_sweep
from fedchoir.reporting.prose_numbers import SUMMARY, Sections, fill
from fedchoir.reporting.run_groups import evaluated, find_results, over_seeds, rows
from fedchoir.reporting.tables import as_text
from fedchoir.utils.errors import UsageError

INTRODUCTION = """# Results

Made from the files under `results/` by `make results`: no number with decimals is typed by hand, neither in the tables
nor in the words below them, and a test holds them to the files. Round ones ("20 points and more") may be.
Accuracies are means over seeds ± standard deviation, of the last three rounds, on test images that no run trained on
(but for `test_split=whole-folder`, which is how released code tests, and stands in tables of its own).
Best in bold, second underlined. A command makes a whole table again; `--only ROW` at the end of a sweep makes one row.
"""


class About(BaseModel):
    """What ``about.toml`` says."""

    model_config = ConfigDict(extra="forbid")

    title: str
    command: str
    order: int = 100
    data: list[str] = []
    """In what our data are not the papers'."""
    chosen: str = ""
    """How options were chosen, where they were."""
    reading: str = ""
    """What the numbers say. Its own numbers are found in the runs: see `fedchoir.reporting.prose_numbers`."""
    picture: list[str] = []
    """Rows whose accuracy is drawn over the rounds."""


def read_about(folder: Path) -> About:
    try:
        return About(**tomllib.loads((folder / "about.toml").read_text()))
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder / 'about.toml'}: {error}") from None


def page(root: Path) -> str:
    """The whole page, sections in the order that they ask for."""
    folders = sorted((f for f in root.iterdir() if f.is_dir()), key=lambda f: (read_about(f).order, f.name))
    known, summary = Sections(root), root / SUMMARY
    opening = [fill(summary.read_text(), known)] if summary.exists() else []
    return "\n".join([INTRODUCTION, *opening, *(section(folder, known) for folder in folders)])


def section(folder: Path, known: Sections) -> str:
    about, results = read_about(folder), find_results([folder / "runs"])
    parts = [f"## {about.title}", as_text(rows(results), "md")]
    parts += [f"![Accuracy over the rounds](assets/results-{folder.name}.svg)"] if about.picture else []
    parts += [fill(about.reading, known, folder.name)] if about.reading else []
    parts += ["Our data: " + " ".join(about.data)] if about.data else []
    parts += [f"Options were chosen so: {about.chosen}"] if about.chosen else []
    parts += [spent(results), f"```bash\n{about.command}\n```", f"Files: `results/{folder.name}/`."]
    parts += [still_open(file)] if (file := folder / "open.toml").exists() else []
    return "\n\n".join(part.strip() for part in parts) + "\n"


def course(results: list[Result], labels: list[str]) -> list[dict[str, Any]]:
    """Accuracy over the rounds of the rows with these labels: [mean, standard deviation] over seeds."""
    drawn = []
    for row in rows(results):
        if row.label in labels:
            runs = [{event["round"]: event for event in evaluated(result)} for result in row.results]
            rounds = sorted(set.intersection(*map(set, runs)))
            drawn.append({"label": row.label, "rounds": [r + 1 for r in rounds]})
            for metric in ("intra", "inter"):
                numbers = [over_seeds([run[r][f"{metric}_avg"] for run in runs]) for r in rounds]
                drawn[-1][metric] = [[number.mean, number.sd or 0.0] for number in numbers]
    if missing := set(labels) - {row["label"] for row in drawn if row["rounds"]}:
        raise UsageError(f"no rounds are kept of {', '.join(sorted(missing))}: leave it out of the picture")
    return drawn


def spent(results: list[Result]) -> str:
    """What the runs took on each device, each by its own clock.

    Runs that share a device are counted whole, so this is more than the device was busy.
    """
    seconds: dict[str, list[float]] = {}
    for result in results:
        seconds.setdefault(result.device, []).append(result.seconds["total"])
    told = [f"{len(each)} on {device} ({sum(each) / 60:.0f} minutes)" for device, each in seconds.items()]
    return f"{len(results)} runs: {', '.join(told)}; each by its own clock, several at once."


def still_open(file: Path) -> str:
    """The rows of ``open.toml``: questions that a reading leaves, for who has the machine and the time."""
    labels = [variant["label"] for variant in read_sweep(file).variant]
    return f"Not run yet, in `results/{file.parent.name}/{file.name}`: {'; '.join(labels)}."


def main(root: str, target: str) -> None:
    from fedchoir.reporting import figures

    Path(target).write_text(page(Path(root)))
    for folder in filter(Path.is_dir, Path(root).iterdir()):
        if labels := read_about(folder).picture:
            path = Path(target).parent / "assets" / f"results-{folder.name}.svg"
            figures.save(figures.curves, {"rows": course(find_results([folder / "runs"]), labels)}, path)


if __name__ == "__main__":
    main(*sys.argv[1:])
