"""Run a queue of sweeps in stretches of GPU time, on a machine without network if need be.

    python -m tools.gpu_queue plan                                            # rows, runs left, minutes
    python -m tools.gpu_queue pack --first 3 --data-root DATA --out bundle/   # code, data and state, in parts
    python -m tools.gpu_queue run --first 3 --minutes 28 --jobs 4             # on the GPU machine: as many runs as fit
    python -m tools.gpu_queue save --out back/                                # on the GPU machine: results, checkpoints
    python -m tools.gpu_queue load back/                                      # here: joins what came back to the state
    python -m tools.gpu_queue merge                                           # finished runs into results/

``results/queue.toml`` lists the rows in order of value. The state folder holds the runs, their checkpoints and the
pretrained models that they share. In the last seconds of a stretch its runs end their round and write it; the next one
continues them with the same numbers. Ctrl-C and SIGTERM end a stretch in the same way. On the other machine, ``bash
bundle/setup.sh DIR`` unpacks a bundle; then, in DIR, ``run`` and ``save`` with ``--state state --data-root data``.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import Field

from fedchoir.core.checkpoint import latest
from fedchoir.experiments.backend import KILL_AFTER, Status
from fedchoir.experiments.local_processes import LocalProcesses
from fedchoir.experiments.placement import JobCount, Places, make_places, parse_jobs
from fedchoir.experiments.scheduler import Outcome, is_finished, log_of, run_jobs, write_manifest
from fedchoir.experiments.sweep import Job, Overrides, jobs_of, read_sweep
from fedchoir.reporting.archive import archive
from fedchoir.utils.errors import UsageError
from fedchoir.utils.io import read_toml
from fedchoir.utils.options import Options

QUEUE = Path("results/queue.toml")
STATE = Path("runs/queue")
CODE = ("src", "tools", "results", "experiments", "pyproject.toml", "setup.py", "constraints.txt")
UNUSED_END = 0.1  # share of a stretch before its margin in which no run starts, at most a minute: it would save nothing
SMALL_FILES = ("experiment.toml", "result.json", "events.jsonl", "steps.jsonl", "task.json", "models.json")
MIB = 2**20
SETUP = """\
# bash setup.sh [FOLDER]: join the parts of a bundle and unpack them
set -e
here=$(cd "$(dirname "$0")" && pwd); mkdir -p "${1:-.}"
cat $(ls -v "$here"/bundle-*.tar.xz) | tar -xJ -C "${1:-.}"
"""
PART = re.compile(r"(\w+)-(\d+)-of-(\d+)\.tar\.xz")  # of an archive: its name, the part, how many there are


class Row(Options):
    """One sweep of the queue."""

    sweep: Path = Field(description="the sweep file")
    section: str = Field(description="folder of results/ that its finished runs go to")
    why: str = Field(description="what the runs decide")
    data: tuple[str, ...] = Field((), description="files or folders of the data root that it needs")
    only: tuple[str, ...] = Field((), description="labels, as with fedchoir sweep --only; default: all")
    seeds: tuple[int, ...] | None = Field(None, description="default: those of the sweep file")
    minutes: float = Field(10.0, gt=0, description="of one run, for the plan")
    keep: bool = Field(False, description="the last checkpoints of its finished runs travel, too, for figures")


class Queue(Options):
    """The content of the file."""

    values: dict[str, Any] = Field(default_factory=dict, description="fields of an experiment that all runs share")
    row: list[Row] = Field(min_length=1, description="in order of value")


@dataclass(frozen=True)
class Task:
    """One run of a row."""

    row: Row
    job: Job

    @property
    def finished(self) -> bool:
        return is_finished(self.job)


def read_queue(path: Path, first: int | None = None) -> Queue:
    """The queue, or its first rows."""
    try:
        values = read_toml(path)
        return Queue(**{**values, "row": values.get("row", [])[:first]})
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def tasks_of(queue: Queue, state: Path, **machine: Any) -> list[Task]:
    """Every run of the queue in its order. Of runs that differ in nothing but their folder the first one counts."""
    tasks: dict[str, Task] = {}
    values = {"pretrained": state / "pretrained", **queue.values, **machine}
    for row in queue.row:
        overrides = Overrides(seeds=row.seeds, values=values)
        for job in jobs_of(read_sweep(row.sweep), state / row.section, overrides, row.only):
            tasks.setdefault(job.experiment.model_dump_json(exclude={"out"}), Task(row, job))
    return list(tasks.values())


# -- a stretch ---------------------------------------------------------------------------------------------------------


class Stretch(LocalProcesses):
    """Worker processes until a moment. In the ``margin`` before it what runs ends its round, and nothing starts in the
    ``unused`` seconds before that."""

    def __init__(self, places: Places, end: float, margin: float, unused: float) -> None:
        super().__init__(places, grace=margin / KILL_AFTER)
        self._stop_at, self._last_start = end - margin, end - margin - unused

    def has_room(self, job: Job) -> bool:
        self._look_at_the_clock()
        return time.monotonic() <= self._last_start and super().has_room(job)

    def poll(self, seconds: float) -> Iterator[tuple[Job, Status]]:
        self._look_at_the_clock()
        yield from super().poll(min(seconds, max(0.1, self._stop_at - time.monotonic())))

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        if now > self._stop_at or (now > self._last_start and not self._running):
            self.stop()


def run_stretch(tasks: Sequence[Task], minutes: float, processes: JobCount, margin: float = 60.0) -> list[Outcome]:
    """Run what is left of the queue for so many minutes, in its order."""
    end = time.monotonic() + 60 * minutes
    for row in {id(task.row): task.row for task in tasks}.values():
        jobs = [task.job for task in tasks if task.row is row]
        write_manifest(jobs[0].out.parent, None, read_sweep(row.sweep).title, jobs)
    left = [task.job for task in tasks if not task.finished]
    unused = min(60.0, UNUSED_END * 60 * minutes)
    backend = Stretch(make_places(processes, len(tasks)), end, margin, unused)
    return run_jobs(left, processes, print_status, backend) if left else []


def print_status(job: Job, status: Status) -> None:
    if status["event"] not in ("round", "began"):
        print(f"{job.name}: {status['event']} {status.get('why', '')}".rstrip(), flush=True)


def merge(tasks: Sequence[Task], results: Path) -> dict[str, int]:
    """Add finished runs to the sections of ``results/``; a new section gets the sweep file. Returns how many runs, by
    section."""
    merged: dict[str, int] = {}
    for task in tasks:
        folder, section = task.job.out.parent, results / task.row.section
        if task.row.section in merged or not any(folder.glob("*/result.json")):
            continue
        section.mkdir(parents=True, exist_ok=True)
        archive(folder, section)
        if not (section / "sweep.toml").exists():
            shutil.copy(task.row.sweep, section / "sweep.toml")
        merged[task.row.section] = len(list(folder.glob("*/result.json")))
    return merged


# -- transfers ---------------------------------------------------------------------------------------------------------


def state_files(tasks: Sequence[Task], state: Path) -> Iterator[list[Path]]:
    """What must travel, most valuable first; the files of one list belong together: the small files of all runs with
    the logs of unfinished ones, then the last checkpoint of each of these, then those to keep, then the pretrained
    models."""
    manifests = sorted({task.job.out.parent / "sweep.json" for task in tasks})
    small = [task.job.out / name for task in tasks for name in SMALL_FILES]
    logs = [log_of(task.job) for task in tasks if not task.finished and task.job.out.is_dir()]
    yield [path for path in (*manifests, *small, *logs) if path.is_file()]
    for task in [*(t for t in tasks if not t.finished), *(t for t in tasks if t.finished and t.row.keep)]:
        folder = task.job.out / "checkpoint"
        if newest := latest(folder):
            yield [folder / "latest.json", *sorted(path for path in newest.rglob("*") if path.is_file())]
    for path in sorted(state.glob("pretrained/*.safetensors")):
        yield [path]


def write_bundle(files: Iterator[tuple[Path, str]], out: Path, part: int, stem: str = "bundle") -> list[Path]:
    """Write files, each under a name, as one compressed archive cut into parts of at most ``part`` bytes."""
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob(f"{stem}-*.tar.xz"):
        old.unlink()
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:xz", preset=1) as archive_file:
        for path, name in files:
            archive_file.add(path, name)
    content = whole.getvalue()
    pieces = [content[start : start + part] for start in range(0, len(content), part)]
    paths = [out / f"{stem}-{number}-of-{len(pieces)}.tar.xz" for number in range(1, len(pieces) + 1)]
    for path, piece in zip(paths, pieces, strict=True):
        path.write_bytes(piece)
    return paths


def save_state(tasks: Sequence[Task], state: Path, out: Path, part: int, limit: float) -> list[Path]:
    """Results and checkpoints as two archives: without the second, the first can be unpacked."""
    chosen = list(chosen_state(tasks, state, limit))
    checkpoints = [(path, name) for path, name in chosen if path.suffix == ".safetensors" or "checkpoint" in path.parts]
    results = [file for file in chosen if file not in checkpoints]
    made = write_bundle(iter(results), out, part, "results")
    return made + (write_bundle(iter(checkpoints), out, part, "checkpoints") if checkpoints else [])


def chosen_state(tasks: Sequence[Task], state: Path, limit: float) -> Iterator[tuple[Path, str]]:
    """The files of the state that fit; a checkpoint that does not fit is made again from an older one, or from the
    start."""
    total = 0
    for group in state_files(tasks, state):
        size = sum(path.stat().st_size for path in group)
        if total + size > limit:
            print(f"left out, does not fit: {group[0].parent} ({size / MIB:.0f} MiB)")
            continue
        total += size
        yield from ((path, f"state/{path.relative_to(state).as_posix()}") for path in group)


def code_and_data(rows: Sequence[Row], data_root: Path | None) -> Iterator[tuple[Path, str]]:
    listed = subprocess.run(["git", "ls-files", *CODE], capture_output=True, text=True, check=True).stdout.split("\n")
    kept = (name for name in listed if name and not name.endswith("runs.jsonl") and Path(name).is_file())
    yield from ((Path(name), name) for name in kept)
    for name in dict.fromkeys(name for row in rows for name in row.data):
        if data_root is None or not (path := data_root / name).exists():
            raise UsageError(f"data: {name} is not in the data root, {data_root}; give --data-root")
        yield path, f"data/{name}"


def load_state(folder: Path, state: Path) -> int:
    """Unpack the archives that another machine saved; one with a missing part is left out, with a note. Only files
    inside ``state`` are written. Returns their number."""
    archives: dict[str, dict[int, Path]] = {}
    totals: dict[str, int] = {}
    for path in folder.glob("*.tar.xz"):
        if found := PART.fullmatch(path.name):
            archives.setdefault(found[1], {})[int(found[2])] = path
            totals[found[1]] = int(found[3])
    if not archives:
        raise UsageError(f"{folder} has no results-1-of-N.tar.xz, which save writes")
    count = 0
    for stem, parts in sorted(archives.items()):
        if missing := sorted(set(range(1, totals[stem] + 1)) - parts.keys()):
            print(f"left out: {stem}, of which part {missing[0]} of {totals[stem]} is missing in {folder}")
            continue
        count += _unpack([parts[number] for number in sorted(parts)], state)
    return count


def _unpack(parts: Sequence[Path], state: Path) -> int:
    content = io.BytesIO(b"".join(path.read_bytes() for path in parts))
    with tarfile.open(fileobj=content, mode="r:xz") as archive_file:
        members = archive_file.getmembers()
        for member in members:
            first, *rest = PurePosixPath(member.name).parts
            if first != "state" or not rest or ".." in rest or not member.isfile():
                raise UsageError(f"{parts[0].parent}: {member.name!r} is not a file of the state")
            member.name = "/".join(rest)
        archive_file.extractall(state, members, filter="data")
    return len(members)


# -- commands ----------------------------------------------------------------------------------------------------------


def plan(tasks: Sequence[Task]) -> str:
    """A line for every row: runs, finished ones, minutes left."""
    lines = []
    for row in {id(task.row): task.row for task in tasks}.values():
        own = [task for task in tasks if task.row is row]
        done = sum(task.finished for task in own)
        minutes = (len(own) - done) * row.minutes
        lines.append(f"{row.section}: {done} of {len(own)} runs, {minutes:.0f} min left · {row.why}")
    total = sum(task.row.minutes for task in tasks if not task.finished)
    return "\n".join([*lines, f"in all {total:.0f} minutes of one run at a time"])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["plan", "pack", "run", "save", "load", "merge"])
    parser.add_argument("folder", type=Path, nargs="?", help="for load")
    parser.add_argument("--queue", type=Path, default=QUEUE)
    parser.add_argument("--first", type=int, metavar="N", help="only the first N rows of the queue")
    parser.add_argument("--state", type=Path, default=STATE)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--out", type=Path, default=Path("bundle"))
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--margin", type=float, default=60.0, help="last seconds, for the rounds at hand")
    parser.add_argument("--jobs", default="1", help="runs at once, or auto: as many as cores and memory allow")
    parser.add_argument("--part", type=float, help="MiB of one part (default: 60 for pack, 15 for save)")
    parser.add_argument("--limit", type=float, default=240.0, help="MiB of checkpoints and results that travel")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--device", help="auto, cpu or cuda; default: that of the queue")
    o = parser.parse_args(arguments)
    try:
        if o.command == "load":
            print(f"{load_state(o.folder or o.out, o.state)} files")
            return
        machine = {"device": o.device, "data_root": o.data_root}
        queue = read_queue(o.queue, o.first)
        tasks = tasks_of(queue, o.state, **{name: value for name, value in machine.items() if value is not None})
        part, limit = int((o.part or (60 if o.command == "pack" else 15)) * MIB), o.limit * MIB
        if o.command == "plan":
            print(plan(tasks))
        elif o.command == "run":
            run_stretch(tasks, o.minutes, parse_jobs(o.jobs), o.margin)
            print(plan(tasks))
        elif o.command == "merge":
            print("\n".join(f"results/{name}: {count} runs" for name, count in merge(tasks, o.results).items()))
        else:
            if o.command == "pack":
                files = iter([*code_and_data(queue.row, o.data_root), *chosen_state(tasks, o.state, limit)])
                made = write_bundle(files, o.out, part)
                (o.out / "setup.sh").write_text(SETUP)
            else:
                made = save_state(tasks, o.state, o.out, part, limit)
            print(f"{len(made)} parts in {o.out}, {sum(path.stat().st_size for path in made) / MIB:.1f} MiB")
    except UsageError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
