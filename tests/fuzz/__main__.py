"""``python -m tests.fuzz [--count N] [--processes P] [--seed S]``: changed inputs for every parser; ends with 1 if any
crashed. Inputs that did are written to ``fuzz-crashes/``."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import warnings
from pathlib import Path

from tests.fuzz.loop import Outcome, Target, fuzz
from tests.fuzz.targets import all_targets, folder_in_memory

CRASHES = Path("fuzz-crashes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2_000_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**9)
    parser.add_argument("--only", help="the name of one parser")
    options = parser.parse_args()
    if options.processes > 1:
        sys.exit(in_processes(options.count, options.processes, options.seed, options.only))
    sys.exit(in_this_process(options.count, options.seed, options.only))


def in_processes(count: int, processes: int, seed: int, only: str | None) -> int:
    """Several processes with other inputs each: a parser that ends its process is noticed by its exit code."""
    print(f"{count:,} inputs in {processes} processes from seed {seed}", flush=True)
    start = time.perf_counter()
    options = ["--processes", "1", "--count", str(-(-count // processes))] + (["--only", only] if only else [])
    command = [sys.executable, "-m", "tests.fuzz", *options, "--seed"]
    running = [subprocess.Popen([*command, str(seed + n)]) for n in range(processes)]
    codes = [process.wait() for process in running]
    print(f"{time.perf_counter() - start:.0f} s; " + ("no crashes" if not any(codes) else f"exit codes {codes}"))
    return int(any(codes))


def in_this_process(count: int, seed: int, only: str | None) -> int:
    warnings.simplefilter("ignore")
    with folder_in_memory() as folder:
        targets = [target for target in all_targets(Path(folder)) if only in (None, target.name)]
        outcomes = [fuzz(target, count_of(target, targets, count), seed) for target in targets]
    print("\n".join(map(line, outcomes)), flush=True)
    for outcome in outcomes:
        report(outcome, seed)
    return int(any(outcome.crashes for outcome in outcomes))


def count_of(target: Target, targets: list[Target], count: int) -> int:
    return -(-count * target.share // sum(each.share for each in targets))


def line(outcome: Outcome) -> str:
    rate = outcome.inputs / max(outcome.seconds, 1e-9)
    return (
        f"{outcome.name:18} {outcome.inputs:9,} inputs {outcome.accepted:9,} accepted {outcome.refused:9,} refused "
        f"{outcome.crashes:5,} crashes {outcome.seconds:6.1f} s {rate:8,.0f}/s"
    )


def report(outcome: Outcome, seed: int) -> None:
    for number, (why, data) in enumerate(outcome.kept):
        CRASHES.mkdir(exist_ok=True)
        path = CRASHES / f"{outcome.name.replace(' ', '-')}-{seed}-{number}"
        path.write_bytes(data)
        print(f"{path}:\n{why}", file=sys.stderr)


if __name__ == "__main__":
    main()
