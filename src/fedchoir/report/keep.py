"""Keep the finished runs of a sweep under ``results/``: what a table needs, and nothing of the machine they ran on.

    python -m fedchoir.report.keep runs/digits results/digits

Of every run its ``result.json``, its rounds (``events.jsonl``) and ``experiment.toml`` (without the data root, its
folder as a sweep would name it), and what tables call it. Runs that are kept already and are not among these stay.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from fedchoir import experiment as experiments
from fedchoir.errors import UsageError
from fedchoir.federation.checkpoint import write_json


def keep(sweep: Path, kept: Path) -> list[str]:
    """Copy the finished runs of a sweep's folder to ``kept/runs``; the names of those that are not finished."""
    try:
        manifest = json.loads((sweep / "sweep.json").read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{sweep} is not the folder of a sweep: {error}") from None
    runs = kept / "runs"
    finished = {name: label for name, label in manifest["runs"].items() if (sweep / name / "result.json").exists()}
    for name in finished:
        told = experiments.make(experiments.read(sweep / name / "experiment.toml"))
        (runs / name).mkdir(parents=True, exist_ok=True)
        for file in ("result.json", "events.jsonl"):
            shutil.copyfile(sweep / name / file, runs / name / file)
        told = told.model_copy(update={"data_root": None, "out": Path("runs") / kept.name / name})
        (runs / name / "experiment.toml").write_text(experiments.to_toml(told))
    before = json.loads(path.read_text())["runs"] if (path := runs / "sweep.json").exists() else {}
    if finished:
        write_json(path, {**manifest, "runs": {**before, **finished}})
    return [name for name in manifest["runs"] if name not in finished]


def main(sweep: str, kept: str) -> None:
    try:
        missing = keep(Path(sweep), Path(kept))
    except UsageError as error:
        raise SystemExit(str(error)) from None
    for name in missing:
        print(f"{name} is not finished, so it is not kept")


if __name__ == "__main__":
    main(*sys.argv[1:])
