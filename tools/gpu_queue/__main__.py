"""The commands of the queue."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from fedchoir.experiments.placement import parse_jobs
from fedchoir.utils.devices import pick_device
from fedchoir.utils.errors import Interrupted, UsageError
from tools import gpu_queue
from tools.gpu_queue.archives import parts_in
from tools.gpu_queue.merge import merge
from tools.gpu_queue.stretch import check_stretch, run_stretch
from tools.gpu_queue.tasks import Queue, Task, plan, read_queue, tasks_of
from tools.gpu_queue.travel import load_state, pack_bundle, save_state

MIB = 2**20
PART = {"pack": 60.0, "save": 15.0}
LIMIT = {"pack": 240.0, "save": 60.0}
EARLIER = {
    "pack": (("bundle",), "setup.sh unpacks the new one"),
    "save": (("results", "checkpoints"), "load takes the furthest state of each run"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    o = parse(arguments)
    try:
        check(o)
        code = execute(o)
    except UsageError as error:
        print(error, file=sys.stderr)
        code = 2
    if code:
        sys.exit(code)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "gpu_queue", description=gpu_queue.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["plan", "pack", "run", "save", "load", "merge"])
    parser.add_argument("folder", type=Path, nargs="?", help="for load")
    parser.add_argument("--queue", type=Path, default=Path("results/queue.toml"))
    parser.add_argument("--first", type=int, metavar="N", help="only the first N rows of the queue")
    parser.add_argument("--state", type=Path, default=Path("runs/queue"))
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--out", type=Path, default=Path("bundle"))
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--margin", type=float, default=60.0, help="last seconds, for the rounds at hand")
    parser.add_argument("--jobs", default="1", help="runs at once, or auto: as many as cores and memory allow")
    parser.add_argument("--part", type=float, help="MiB of one file (default: 60 for pack, 15 for save)")
    parser.add_argument(
        "--limit",
        type=float,
        help="MiB of results and checkpoints that travel, compressed (default: 240, 60 for save)",
    )
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--device", help="auto, cpu or cuda; default: that of the queue")
    o = parser.parse_intermixed_args(arguments)
    o.part = PART.get(o.command, 1.0) if o.part is None else o.part
    o.limit = LIMIT.get(o.command, 1.0) if o.limit is None else o.limit
    return o


def check(o: argparse.Namespace) -> None:
    """Refuse values that are not possible, before anything is read or written."""
    ranges = {
        "first": (o.first is None or o.first >= 1, "a number of rows from 1"),
        "minutes": (math.isfinite(o.minutes) and o.minutes > 0, "more than 0"),
        "margin": (math.isfinite(o.margin) and o.margin >= 0, "seconds, 0 or more"),
        "part": (math.isfinite(o.part) and o.part >= 0.01, "MiB, 0.01 or more"),
        "limit": (math.isfinite(o.limit) and o.limit > 0, "MiB, more than 0"),
    }
    for name, (possible, right) in ranges.items():
        if not possible:
            raise UsageError(f"--{name} {getattr(o, name)} is not possible: it should be {right}")
    if o.command == "run":
        check_stretch(o.minutes, o.margin)
        parse_jobs(o.jobs)
        pick_device(o.device or "auto")
    if o.folder and o.command != "load":
        raise UsageError(f"{o.command} takes no folder, {o.folder}; --out names the folder that pack and save write")


def execute(o: argparse.Namespace) -> int:
    """Carry out a command and return the exit code."""
    if o.command == "load":
        return load(o)
    machine = {"device": o.device, "data_root": o.data_root}
    queue = read_queue(o.queue, o.first)
    tasks = tasks_of(queue, o.state, **{name: value for name, value in machine.items() if value is not None})
    if o.command == "run":
        return run(o, queue, tasks)
    if o.command == "plan":
        print(plan(queue.row, tasks))
    elif o.command == "merge":
        print("\n".join(f"results/{name}: {count} runs" for name, count in merge(tasks, o.results).items()))
    else:
        return pack_or_save(o, queue, tasks)
    return 0


def run(o: argparse.Namespace, queue: Queue, tasks: Sequence[Task]) -> int:
    try:
        outcomes = run_stretch(tasks, o.minutes, parse_jobs(o.jobs), o.margin)
    except Interrupted as second:
        print(plan(queue.row, tasks))
        print("killed: what still ran continues from its last checkpoint")
        return second.code
    failed = [outcome for outcome in outcomes if outcome.state == "failed"]
    print(plan(queue.row, tasks))
    for outcome in failed:
        print(f"failed: {outcome.job.out}: {outcome.why}{f'; see {outcome.log}' if outcome.log else ''}")
    return 1 if failed else 0


def pack_or_save(o: argparse.Namespace, queue: Queue, tasks: Sequence[Task]) -> int:
    part, limit = int(o.part * MIB), o.limit * MIB
    if o.command == "pack":
        made, left_out = pack_bundle(queue.row, tasks, o.state, o.data_root, o.out, part, limit)
    else:
        made, left_out = save_state(tasks, o.state, o.out, part, limit)
    print(f"{len(made)} files in {o.out}, {sum(path.stat().st_size for path in made) / MIB:.1f} MiB")
    stems, use = EARLIER[o.command]
    if earlier := parts_in(o.out, *stems).keys() - made:
        print(f"{len(earlier)} files of earlier archives stay in {o.out}: {use}")
    for what in left_out:
        print(f"left out, does not fit: {what}")
    if left_out:
        print(f"{len(left_out)} did not fit into --limit {o.limit:g} (MiB): give more, or fewer rows with --first")
    return 1 if left_out else 0


def load(o: argparse.Namespace) -> int:
    loaded = load_state(o.folder or o.out, o.state)
    for what in loaded.behind:
        print(f"not loaded, further here: {what}")
    for problem in loaded.problems:
        print(f"left out: {problem}")
    as_far = len(loaded.behind + loaded.equal)
    print(f"{len(loaded.taken)} runs loaded into {o.state}; {as_far} are as far here already")
    return 1 if loaded.problems else 0


if __name__ == "__main__":
    main()
