"""Finished runs of a queue go into the sections of the results."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from fedchoir.experiments.sweep import Job
from fedchoir.reporting.archive import in_order, make_record
from fedchoir.reporting.store import STORE, Record, read_records, write_records
from tools.gpu_queue.tasks import Task


def merge(tasks: Sequence[Task], results: Path) -> dict[str, int]:
    """Add each finished run to the section of every row that has it, under its name and label there. A new section gets
    the sweep file, which has the order of its records. Returns how many runs of the queue each section has now."""
    records: dict[str, dict[str, Record]] = {}
    sweeps: dict[str, Path] = {}
    for task in tasks:
        if not task.finished:
            continue
        record = make_record(task.job.out)
        for row, job in task.places:
            records.setdefault(row.section, {})[job.name] = _named(record, job)
            sweeps.setdefault(row.section, row.sweep)
    for section, new in records.items():
        store, order = results / section / STORE, results / section / "sweep.toml"
        order.parent.mkdir(parents=True, exist_ok=True)
        if not order.exists():
            shutil.copy(sweeps[section], order)
        kept = {record["name"]: record for record in (read_records(store) if store.exists() else [])}
        write_records(store, in_order((kept | new).values(), order))
    return {section: len(new) for section, new in records.items()}


def _named(record: Record, job: Job) -> Record:
    """The record of a run as the sweep of ``job`` calls it."""
    own = {key: value for key, value in record.items() if key not in ("table", "published")}
    published = {"published": list(job.published)} if job.published else {}
    return {**own, "name": job.name, "label": job.label, **published}
