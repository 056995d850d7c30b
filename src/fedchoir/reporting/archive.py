"""Add the finished runs of a sweep to the results store.

    python -m fedchoir.reporting.archive runs/digits results/digits

Every finished run becomes one record of ``results/digits/runs.jsonl``: label, experiment (without data root and
output folder), result and rounds. A run that the store already holds is replaced; all others stay. Runs of
``results/digits/sweep.toml``, if there is one, are stored in its order, which is that of the tables.
"""

import json
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

from fedchoir.core.result import read_events
from fedchoir.experiments.sweep import jobs_of, read_sweep
from fedchoir.reporting.store import STORE, Record, extra, find_results, pack_events, read_records, write_records
from fedchoir.utils.errors import UsageError

MACHINE = ("cache", "data_root", "out", "pretrained")
"""Fields of an experiment that describe the machine it ran on."""


def archive(sweep: Path, section: Path) -> list[str]:
    """Store the finished runs of a sweep folder and return the names of the unfinished ones."""
    try:
        names = list(json.loads((sweep / "sweep.json").read_text())["runs"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{sweep} is not the folder of a sweep: {error}") from None
    store = section / STORE
    records = {record["name"]: record for record in (read_records(store) if store.exists() else [])}
    finished = [name for name in names if (sweep / name / "result.json").exists()]
    records |= {name: make_record(sweep / name) for name in finished}
    if finished:
        write_records(store, in_order(records.values(), section / "sweep.toml"))
    return [name for name in names if name not in finished]


def in_order(records: Iterable[Record], sweep: Path) -> list[Record]:
    """The records in the order of a sweep file, those that are not in it last."""
    places = {
        job.name: place for place, job in enumerate(jobs_of(read_sweep(sweep), sweep.parent) if sweep.exists() else ())
    }
    return sorted(records, key=lambda record: places.get(record["name"], len(places)))


def make_record(folder: Path) -> Record:
    """Return the record of a finished run."""
    (result,) = find_results([folder / "result.json"])
    experiment = tomllib.loads((folder / "experiment.toml").read_text())
    known = {key: value for key in ("name", "label", "table", "published") if (value := extra(result, key))}
    record = json.loads((folder / "result.json").read_text()) | known
    record["experiment"] = {key: value for key, value in experiment.items() if key not in MACHINE}
    if events := read_events(folder / "events.jsonl"):
        record["events"] = pack_events(events)
    return record


def main(*folders: str) -> None:
    if len(folders) != 2:
        raise SystemExit("usage: python -m fedchoir.reporting.archive RUNS/NAME results/NAME")
    try:
        unfinished = archive(Path(folders[0]), Path(folders[1]))
    except UsageError as error:
        raise SystemExit(str(error)) from None
    for name in unfinished:
        print(f"{name} has not finished, so it is not stored")


if __name__ == "__main__":
    main(*sys.argv[1:])
