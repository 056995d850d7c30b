"""The page of results, made from the runs that are kept under ``results/``: no number in it is typed.

    python -m fedchoir.report.results_page results docs/results.md

Every folder of ``results/`` is a section: ``about.toml`` says what it is and how to run it again, ``runs/`` holds the
``result.json`` and ``experiment.toml`` of every run (see `fedchoir.report.keep`). Where the rounds of all runs are
kept, too, there is a picture of them.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from fedchoir.errors import UsageError
from fedchoir.federation.result import Result
from fedchoir.report.rows import evaluated, find_results, over_seeds, rows
from fedchoir.report.tables import as_text

INTRODUCTION = """# Results

Made from the files under `results/` by `make results`; no number in a table is typed by hand, and a test compares them.
Accuracies are means over seeds ± standard deviation, of the last three rounds, on test images that no run trained on.
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
    """What the numbers say."""


def read_about(folder: Path) -> About:
    try:
        return About(**tomllib.loads((folder / "about.toml").read_text()))
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder / 'about.toml'}: {error}") from None


def page(root: Path) -> str:
    """The whole page, sections in the order that they ask for."""
    folders = sorted((f for f in root.iterdir() if f.is_dir()), key=lambda f: (read_about(f).order, f.name))
    return "\n".join([INTRODUCTION, *(section(folder) for folder in folders)])


def section(folder: Path) -> str:
    about, results = read_about(folder), find_results([folder / "runs"])
    parts = [f"## {about.title}", as_text(rows(results), "md")]
    parts += [f"![Accuracy over the rounds](assets/results-{folder.name}.svg)"] if course(results) else []
    parts += [about.reading] if about.reading else []
    parts += ["Our data: " + " ".join(about.data)] if about.data else []
    parts += [f"Options were chosen so: {about.chosen}"] if about.chosen else []
    parts += [spent(results), f"```bash\n{about.command}\n```", f"Files: `results/{folder.name}/`."]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def course(results: list[Result]) -> list[dict[str, Any]]:
    """Accuracy over the rounds, of each row: [mean, standard deviation] over seeds. Empty if a run tells no rounds."""
    drawn = []
    for row in rows(results):
        runs = [{event["round"]: event for event in evaluated(result)} for result in row.results]
        if not all(runs):
            return []
        rounds = sorted(set.intersection(*map(set, runs)))
        numbers = {
            metric: [over_seeds([run[r][f"{metric}_avg"] for run in runs]) for r in rounds]
            for metric in ("intra", "inter")
            if runs[0][rounds[0]][f"{metric}_avg"] is not None
        }
        points = {metric: [[n.mean, n.sd or 0.0] for n in over_rounds] for metric, over_rounds in numbers.items()}
        drawn.append({"label": row.label, "rounds": [r + 1 for r in rounds], **points})
    return drawn


def spent(results: list[Result]) -> str:
    """What the runs took, each by its own clock.

    Runs that share a device are counted whole, so this is more than the device was busy.
    """
    devices = " and ".join(dict.fromkeys(result.device for result in results))
    minutes = sum(result.seconds["total"] for result in results) / 60
    return f"{len(results)} runs, {minutes:.0f} minutes of run time in all on {devices} (several at once)."


def main(root: str, target: str) -> None:
    from fedchoir.report import figures

    Path(target).write_text(page(Path(root)))
    for folder in Path(root).iterdir():
        if drawn := course(find_results([folder / "runs"])):
            path = Path(target).parent / "assets" / f"results-{folder.name}.svg"
            figures.save(figures.curves, {"rows": drawn}, path)


if __name__ == "__main__":
    main(*sys.argv[1:])
