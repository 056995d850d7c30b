"""The page of results, made from the runs that are kept under ``results/``: no number in it is typed.

    python -m fedchoir.report.results_page results docs/results.md

Every folder of ``results/`` is a section: ``about.toml`` says what it is and how to run it again, ``runs/`` holds the
``result.json`` and ``experiment.toml`` of every run.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from fedchoir.errors import UsageError
from fedchoir.federation.result import Result
from fedchoir.report.tables import as_text, find_results, rows

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
    parts += [about.reading] if about.reading else []
    parts += ["Our data: " + " ".join(about.data)] if about.data else []
    parts += [f"Options were chosen so: {about.chosen}"] if about.chosen else []
    parts += [spent(results), f"```bash\n{about.command}\n```", f"Files: `results/{folder.name}/`."]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def spent(results: list[Result]) -> str:
    """What the runs took, each by its own clock.

    Runs that share a device are counted whole, so this is more than the device was busy.
    """
    devices = " and ".join(dict.fromkeys(result.device for result in results))
    minutes = sum(result.seconds["total"] for result in results) / 60
    return f"{len(results)} runs, {minutes:.0f} minutes of run time in all on {devices} (several at once)."


def main(root: str, target: str) -> None:
    Path(target).write_text(page(Path(root)))


if __name__ == "__main__":
    main(*sys.argv[1:])
