"""Seconds from the start of Python to the help text, and to the first optimiser step of a run.

    python benchmarks/start_up.py                                                       # generated data, CPU
    python benchmarks/start_up.py --scenario digits --data-root DATA --device cuda --precision bf16 --fused

Each is measured in fresh processes, one after the other. The first process may fill caches of the system and of
kernels, so every number is printed, not only the least.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HELP = "from fedchoir.cli import main; main()"
FIRST_STEP = """
import os, time
from torch.optim.optimizer import register_optimizer_step_pre_hook
def first(*_):
    print("first step", time.time(), flush=True)
    os._exit(0)
register_optimizer_step_pre_hook(first)
from fedchoir.cli import main
main()
"""


def seconds(program: str, arguments: list[str]) -> float:
    """From the start of a fresh process until it prints its first step or, without one, until it ends."""
    start = time.time()
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    end = time.time()
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed: {done.stderr.strip().splitlines()[-1:]}")
    steps = [line.rpartition(" ")[2] for line in done.stdout.splitlines() if line.startswith("first step")]
    if program is FIRST_STEP and not steps:
        raise SystemExit(f"{' '.join(arguments)} ended without a step")
    return (float(steps[0]) if steps else end) - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="fccl+")
    parser.add_argument("--scenario", default="digits-lite")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--fused", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    o = parser.parse_args()
    run = ["run", o.method, "--scenario", o.scenario, "--rounds", "1", "--device", o.device, "--precision", o.precision]
    run += ["--fused"] if o.fused else []
    run += ["--data-root", str(o.data_root)] if o.data_root else []
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}; wall-clock seconds", flush=True)
    for name, program, arguments in (("fedchoir --help", HELP, ["--help"]), (" ".join(run), FIRST_STEP, run)):
        took = []
        for _ in range(o.repeats):
            with tempfile.TemporaryDirectory() as folder:
                out = ["--out", f"{folder}/run"] if program is FIRST_STEP else []
                took.append(seconds(program, [*arguments, *out]))
        shown = name.replace(str(o.data_root), "DATA") if o.data_root else name
        print(f"{shown}: {'  '.join(f'{s:.2f}' for s in took)}", flush=True)


if __name__ == "__main__":
    main()
