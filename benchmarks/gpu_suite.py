"""The GPU figures of docs/performance.md in one run: every benchmark after the other, their output in one record.

    python benchmarks/gpu_suite.py --list
    python benchmarks/gpu_suite.py --data-root DATA --record benchmarks/records/gpu-suite-h200.txt

On a machine that ends a command after ten minutes, three commands ($OUT is the folder that comes back from it):

    suite="python benchmarks/gpu_suite.py --minutes 9 --data-root DATA"
    $suite --record $OUT/a.txt --only cold,warm,paper,tf32,start,checkpoints
    $suite --record $OUT/b.txt --only architectures
    $suite --record $OUT/c.txt --only plain,contest,contest-10 --htfllib HtFLlib --python htfenv/bin/python

Parts run in the order of ``--only``, else of value. The suite refuses parts that need more than ``--minutes``. A part
leaves the parts after it the time that they need; one that takes longer is killed, and the record says so. What a part
prints is in the record at once. Where a run has several processes on the GPU and NVIDIA's MPS is installed, MPS is
started for that part alone: processes that are killed while they share it can end others. The kernel cache is a new
folder, so the first part is a cold start and the second a warm one; a suite in several commands keeps it with ``--cache
DIR``. The record says of every part whether MPS ran and how many kernels the cache had before and after. DATA needs
Digits, CIFAR-100 and, for the contest, CIFAR-10.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import torch

from fedchoir.engines.local.kernel_cache import VARIABLE, compiled_kernels

BENCHMARKS = Path(__file__).resolve().parent
FOUR = ["--devices", ",".join(["cuda:0"] * 4)]
MARGIN = 20.0  # seconds of a part in which it prints its table
BETWEEN = 10.0  # seconds from the end of a part to the next: MPS ends, too


@dataclass(frozen=True)
class Part:
    """One command: a script of this folder with its arguments. ``{…}`` in them is an option of this script."""

    name: str
    script: str
    arguments: list[str]
    limit: float
    why: str
    least: float  # seconds without which it gives too little, so that it is not begun; estimates until it has run

    @property
    def shares_gpu(self) -> bool:
        return FOUR[1] in self.arguments

    def needs(self, o: argparse.Namespace) -> str:
        """The option that the command needs and that was not given."""
        missing = (name for name in ("data_root", "htfllib", "python") if f"{{{name}}}" in self.arguments)
        return next((f"--{name.replace('_', '-')}" for name in missing if getattr(o, name) is None), "")

    def command(self, o: argparse.Namespace, seconds: float) -> list[str]:
        return [argument.format(**vars(o), seconds=int(seconds - MARGIN)) for argument in self.arguments]


DATA = ["--data-root", "{data_root}"]
ROUND = [*DATA, "--rounds", "4", "--fused", *FOUR]
CONTEST = ["--htfllib", "{htfllib}", "--python", "{python}", *DATA, "--device", "cuda", "--rounds", "3"]
PARTS = [
    Part("cold", "gpu_round.py", [*ROUND, "--precision", "bf16"], 150, "start and rounds, empty kernel cache", 60),
    Part("warm", "gpu_round.py", [*ROUND, "--precision", "bf16"], 90, "the same, kernels in the cache", 45),
    Part(
        "paper", "gpu_round.py", [*ROUND, "--precision", "bf16", "--profile", "paper"], 90, "the paper's batches", 45
    ),
    Part("tf32", "gpu_round.py", [*ROUND, "--precision", "tf32"], 120, "rounds in TF32", 60),
    Part(
        "start", "start_up.py",
        ["--scenario", "digits", *DATA, "--device", "cuda", "--precision", "bf16", "--fused", "--repeats", "2"],
        90, "from the command to the first step", 45,
    ),
    Part("checkpoints", "checkpoints.py", ["--device", "cuda"], 180, "what a round waits for checkpoints", 120),
    Part(
        "architectures", "architectures.py",
        ["--device", "cuda", "--precision", "bf16", "--compile-at-once", "6", "--compile-timeout", "150",
         "--seconds", "{seconds}"],
        520, "training steps of other models", 300,
    ),
    Part(
        "plain", "naive.py",
        ["--device", "cuda", "--precision", "tf32", "--scenario", "digits", *DATA, "--epochs", "4", "--repeats", "1"],
        240, "a round of Digits in plain PyTorch and with captured steps, 4 local epochs", 200,
    ),
    Part(
        "contest", "htfllib.py", [*CONTEST, "--batch", "64", "--methods", "solo,fedproto,fml", "--timeout", "100"],
        300, "HtFLlib, batches of 64", 120,
    ),
    Part(
        "contest-10", "htfllib.py", [*CONTEST, "--batch", "10", "--methods", "solo,fml", "--timeout", "200"],
        400, "HtFLlib, batches of 10", 150,
    ),
]  # fmt: skip


@contextmanager
def mps(wanted: bool) -> Iterator[str]:
    """NVIDIA's Multi-Process Service, where it is wanted and installed; the words for the record.

    A daemon that runs already serves every process, wanted or not, and stays.
    """
    control = shutil.which("nvidia-cuda-mps-control")
    if control is not None and _answers(control, "get_server_list"):
        yield "with MPS (its daemon ran already)"
    elif control is None or not wanted:
        yield "without MPS"
    elif subprocess.run([control, "-d"], check=False).returncode:
        yield "without MPS (its daemon does not start)"
    else:
        try:
            yield "with MPS"
        finally:
            _answers(control, "quit")


def _answers(control: str, command: str) -> bool:
    """Whether MPS's daemon is there and takes a command. To quit, it waits for clients that still run."""
    try:
        done = subprocess.run([control], input=f"{command}\n", text=True, check=False, timeout=10, capture_output=True)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode == 0


def kernels(cache: Path) -> int:
    """How many compiled kernels the suite's cache has."""
    return sum(map(compiled_kernels, (cache / "kernels").glob("*")))


def run_part(part: Part, o: argparse.Namespace, seconds: float, environment: dict[str, str], record: TextIO) -> str:
    """Run a command for at most so many seconds; what it prints goes into the record. Returns how it ended, if badly.

    It is killed, with the processes that it started, also when the suite is stopped.
    """
    command = [sys.executable, str(BENCHMARKS / part.script), *part.command(o, seconds)]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=record, stderr=subprocess.STDOUT, env=environment,
        start_new_session=True,
    )  # fmt: skip
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return f"-- killed after {seconds:.0f} s\n"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return f"-- ended with exit code {code}\n" if code else ""


def shown(part: Part, o: argparse.Namespace) -> str:
    """The command without this machine's paths."""
    names = {
        "data_root": "DATA",
        "htfllib": "HtFLlib",
        "python": "htfenv/bin/python",
        "seconds": f"{part.limit - MARGIN:.0f}",
    }
    return " ".join(["python", f"benchmarks/{part.script}", *(word.format(**names) for word in part.arguments)])


def chosen(o: argparse.Namespace) -> list[Part]:
    names = o.only.split(",") if o.only else [part.name for part in PARTS]
    by_name = {part.name: part for part in PARTS}
    if wrong := [name for name in names if name not in by_name]:
        raise SystemExit(f"gpu_suite.py: --only {wrong[0]!r} is no part; parts: {', '.join(by_name)}")
    return [by_name[name] for name in names]


def check_time(parts: list[Part], o: argparse.Namespace) -> None:
    """Refuse parts that cannot all run in the time."""
    needed = {part.name: part.least for part in parts if not part.needs(o)}
    if (total := sum(needed.values()) + BETWEEN * (len(needed) - 1)) > 60 * o.minutes:
        each = " ".join(f"{name} {least:.0f}" for name, least in needed.items())
        raise SystemExit(
            f"gpu_suite.py: these parts need {total:.0f} s, and --minutes {o.minutes:g} is {60 * o.minutes:.0f}; "
            f"choose with --only among {each}"
        )


def suite(parts: list[Part], o: argparse.Namespace, cache: Path) -> None:
    """Run the parts; what they print goes into the record, and how each ended."""
    end = time.monotonic() + 60 * o.minutes
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "FEDCHOIR_CACHE": str(cache), "PYTHONUNBUFFERED": "1"}
    environment.pop(VARIABLE, None)  # it comes before FEDCHOIR_CACHE, and the user's own cache has kernels
    o.record.parent.mkdir(parents=True, exist_ok=True)
    with o.record.open("a") as record:

        def note(text: str) -> None:
            record.write(text)
            record.flush()
            sys.stdout.write(text)
            sys.stdout.flush()

        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
        note(
            f"{gpu}, {os.cpu_count()} cores, torch {torch.__version__}, Python {platform.python_version()}, "
            f"OMP_NUM_THREADS={environment['OMP_NUM_THREADS']}\n"
        )
        for k, part in enumerate(parts):
            left = end - time.monotonic()
            later = sum(other.least + BETWEEN for other in parts[k + 1 :] if not other.needs(o))
            note(f"\n-- {part.name}: {part.why}\n$ {shown(part, o)}\n")
            if missing := part.needs(o):
                note(f"-- not run: {missing} was not given\n")
            elif left < part.least:
                note(f"-- not run: it needs {part.least:.0f} s, and {max(left, 0):.0f} s were left\n")
            else:
                start, before = time.monotonic(), kernels(cache)
                begin = o.record.stat().st_size
                with mps(part.shares_gpu) as how:
                    ended = run_part(part, o, min(part.limit, max(left - later, part.least)), environment, record)
                sys.stdout.write(o.record.read_bytes()[begin:].decode(errors="replace"))
                seconds, after = time.monotonic() - start, kernels(cache)
                note(f"{ended}-- {seconds:.0f} s in all, {how}, kernels in the cache: {before} before, {after} after\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the parts")
    parser.add_argument("--only", help="parts, as cold,warm")
    parser.add_argument("--minutes", type=float, default=25.0, help="for all parts")
    parser.add_argument("--record", type=Path, default=Path("runs/gpu-suite.txt"), help="the output is added to it")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--htfllib", type=Path, help="a checkout of github.com/TsingZ0/HtFLlib, for the contest")
    parser.add_argument("--python", help="an interpreter with HtFLlib's packages")
    parser.add_argument("--cache", type=Path, help="folder for compiled kernels; default: a new one")
    o = parser.parse_args()
    parts = chosen(o)
    if o.list:
        for part in parts:
            print(f"{part.name}: {part.why}, {part.least:.0f} to {part.limit:.0f} s\n  {shown(part, o)}")
        return
    check_time(parts, o)
    if not torch.cuda.is_available():
        raise SystemExit("gpu_suite.py: these benchmarks need a CUDA device; --list prints them")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as new:
        suite(parts, o, o.cache or Path(new))


if __name__ == "__main__":
    main()
