"""Keep the finished runs of a sweep under ``results/``: what a table needs, and nothing of the machine they ran on.

    python -m fedchoir.reporting.archive runs/digits results/digits

Of every run its ``result.json``, its rounds (``events.jsonl``) and ``experiment.toml`` (without the data root, its
folder as a sweep would name it), and what tables call it. Runs that are kept already and are not among these stay.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from fedchoir.experiments import config as experiments
from fedchoir.experiments.scheduler import write_manifest
from fedchoir.utils.errors import UsageError


def keep(sweep: Path, kept: Path) -> list[str]:
    """Copy the finished runs of a sweep's folder to ``kept/runs``; the names of those that are not finished."""
    try:
        manifest = json.loads((sweep / "sweep.json").read_text())
        table, title, labels = manifest["table"], manifest["title"], dict(manifest["runs"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{sweep} is not the folder of a sweep: {error}") from None
    runs = kept / "runs"
    finished = {name: label for name, label in labels.items() if (sweep / name / "result.json").exists()}
    for name in finished:
        told = experiments.make(experiments.read(sweep / name / "experiment.toml"))
        told = told.model_copy(update={"data_root": None, "out": Path("runs") / kept.name / name})
        (runs / name).mkdir(parents=True, exist_ok=True)
        (runs / name / "experiment.toml").write_text(experiments.to_toml(told))
        for file in ("events.jsonl", "result.json"):
            if (sweep / name / file).exists():
                shutil.copyfile(sweep / name / file, runs / name / file)
    if finished:
        write_manifest(runs, table, title, finished)
    return [name for name in labels if name not in finished]


def main(*folders: str) -> None:
    if len(folders) != 2:
        raise SystemExit("usage: python -m fedchoir.reporting.archive RUNS/NAME results/NAME")
    try:
        missing = keep(Path(folders[0]), Path(folders[1]))
    except UsageError as error:
        raise SystemExit(str(error)) from None
    for name in missing:
        print(f"{name} is not finished, so it is not kept")


if __name__ == "__main__":
    main(*sys.argv[1:])
