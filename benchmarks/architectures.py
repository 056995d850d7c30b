"""Milliseconds of a training step, in plain PyTorch, with torch.compile and on the engine, for several architectures.

    python benchmarks/architectures.py --precision bf16 [--models resnet50,mlp] [--ways plain,ours] [--out FILE]
    python benchmarks/architectures.py --cache DIR --compile-timeout 120 --seconds 900

A step is the forward pass, cross-entropy, the backward pass and Adam (fused, in all ways). All ways start from the same
weights and take the same batches, which are in the device's memory. Dropout and stochastic depth are off, so that the
losses of the first steps can be compared with those of the plain way.

- plain: eager, contiguous memory layout; `plain-graph`: the same step as a CUDA graph, with the copy of each batch.
- compile: the plain loop with ``torch.compile(model, mode="max-autotune")``; loss and Adam stay eager.
- ours: the local phase of a federation of one client on the engine. Its time has all that the phase does: it resets the
  optimizer, draws the order of the samples, gathers and normalises every batch, and waits for the last step.
  `ours-fused`: the same with fused layers.

Each way of each architecture has a process of its own, and only one of them works at a time: the ways take turns, a
block of steps each. *First use* is the time of the first steps: capture, kernels, compilation; CUDA and cuDNN have
started before. torch.compile comes first, for all architectures; with ``--compile-at-once 6`` they compile together,
which takes less time and makes the choice of kernels less certain. With ``--cache`` a second run compiles less.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import torch

from architecture_ways import COLUMNS, NEEDS_CUDA, PASS, WAYS, Case, Options, Row, work

PRELOAD = ["fedchoir.engines.local.engine", "fedchoir.experiments.run", "fedchoir.models.image.mobile", "timm"]
CASES = {
    "resnet18": Case("resnet18", 32, 256), "resnet50": Case("torchvision.models:resnet50", 224, 128),
    "convnext_atto": Case("timm:convnext_atto", 224, 128), "vit_tiny": Case("timm:vit_tiny_patch16_224", 224, 128),
    "efficientnet_b0": Case("efficientnet_b0", 32, 256), "mlp": Case("mlp", 0, 256),
}  # fmt: skip


class Process:
    """A way in its own process, and what is known of it."""

    def __init__(self, name: str, case: Case, way: str, o: Options) -> None:
        self.row: Row = {"model": name, "way": way, "spec": case.model, "side": case.side, "batch": case.batch}
        self.row |= {"ms": []}
        self.case, self.o = case, o
        self.starting = Lock()  # others stop it, perhaps while it starts
        self.stopped = False

    def prepare(self, limit: float) -> None:
        """Start and take the first steps; the way is given up after ``limit`` seconds."""
        way = self.row["way"]
        if way in NEEDS_CUDA and self.o.device == "cpu":
            self.row["error"] = "needs a CUDA device"
        elif limit <= 0:
            self.row["error"] = f"not measured: {self.o.seconds:.0f} s are over"
        elif self.start(way):
            self.row |= self.answer(limit)
            if "error" in self.row:
                self.stop()
            elif not all(map(math.isfinite, self.row["losses"])):
                self.fail("its loss is not finite")

    def start(self, way: str) -> bool:
        context: Any = multiprocessing.get_context("forkserver")  # which imports torch once
        with self.starting:
            if not self.stopped:
                self.connection, theirs = context.Pipe()
                self.process = context.Process(target=work, args=(theirs, self.case, way, self.o))
                self.process.start()
                theirs.close()
            return not self.stopped

    def answer(self, limit: float) -> Row:
        try:
            return self.connection.recv() if self.connection.poll(limit) else {"error": f"over {limit:.0f} s"}
        except (EOFError, OSError):
            self.process.join()
            return {"error": f"its process ended with status {self.process.exitcode}"}

    def measure(self, limit: float) -> None:
        """One block of steps, if there is time."""
        if "error" in self.row or limit <= 0:
            return
        with suppress(OSError):  # it is gone, and what follows says how
            self.connection.send(True)
        found = self.answer(limit)
        if "ms" in found:
            self.row["ms"].append(found["ms"])
        else:
            self.fail(found["error"])

    def fail(self, why: str) -> None:
        self.row["error"] = why
        self.stop()

    def stop(self) -> None:
        with self.starting:
            if hasattr(self, "process") and not self.stopped:
                with suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)
                self.process.kill()  # where it has no group of its own yet
                self.process.join()
                self.connection.close()
            self.stopped = True


def measure(o: Options) -> list[Row]:
    """Every way of every model, compared with its plain one."""
    ways = {name: [Process(name, case, way, o) for way in o.ways] for name, case in o.models.items()}
    with ThreadPoolExecutor(o.compile_at_once) as pool:
        try:
            return measured(ways, o, pool)
        finally:  # after an error, too: they would wait for this process, and it for them at its exit
            for way in (way for of_model in ways.values() for way in of_model):
                way.stop()


def measured(ways: dict[str, list[Process]], o: Options, pool: ThreadPoolExecutor) -> list[Row]:
    end = time.perf_counter() + o.seconds
    share = 0.6 if len(o.ways) > 1 else 1.0  # of the time, at most, for torch.compile
    compile_end = time.perf_counter() + share * o.seconds
    compiling = [way for of_model in ways.values() for way in of_model if way.row["way"] == "compile"]
    list(pool.map(lambda way: way.prepare(min(compile_end - time.perf_counter(), o.compile_timeout)), compiling))
    rows = []
    for name, of_model in ways.items():
        for way in of_model:
            if way not in compiling:
                way.prepare(end - time.perf_counter())
        for _ in range(o.blocks):
            for way in of_model:
                way.measure(end - time.perf_counter())
        for way in of_model:
            way.stop()
        compare(found := [way.row for way in of_model])
        for row in found:  # for whoever ends this before the table
            print(line(row, len(name)), file=sys.stderr, flush=True)
        rows += found
    return rows


def compare(rows: list[Row]) -> None:
    """Add each way's speed and losses in relation to those of the plain way of its model."""
    plain = {row["model"]: row for row in rows if row["way"] == "plain" and row["ms"]}
    for row in rows:
        row["median"] = statistics.median(row["ms"]) if row["ms"] else None
        if row["ms"] and (base := plain.get(row["model"])):
            row["ratio"] = statistics.median(base["ms"]) / row["median"]
            pairs = zip(row["losses"], base["losses"], strict=True)
            row["difference"] = max(abs(mine - theirs) / (abs(theirs) or 1.0) for mine, theirs in pairs)


def line(row: Row, width: int) -> str:
    """A row of the table."""
    start = f"{row['model']:{width}} {row['way']:12}"
    if not row["ms"] or "error" in row:
        return f"{start} {row.get('error', 'not measured')}"
    spread = f"({min(row['ms']):.2f} to {max(row['ms']):.2f})"
    ratio, difference = row.get("ratio"), row.get("difference")
    more = [] if "fused layers" not in row or row["way"] == "ours" else [f"{row['fused layers']} fused layers"]
    return " ".join([
        f"{start} {row['median']:9.2f} {spread:>20} {'' if ratio is None else f'{ratio:.2f}':>7}",
        f"{row['first']:9.1f} s {'' if difference is None else f'{difference:.1e}':>12}", *more, *row.get("notes", []),
    ]).rstrip()  # fmt: skip


def report(rows: list[Row], o: Options) -> None:
    where = torch.cuda.get_device_name() if o.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{where}, torch {torch.__version__}, {o.precision}; {o.blocks} blocks of {o.steps} steps, Adam {o.lr:g}")
    for name, case in o.models.items():
        size = f"images of {case.side}×{case.side}" if case.side else f"rows of {COLUMNS} numbers"
        parameters = next((r["parameters"] / 1e6 for r in rows if r["model"] == name and "parameters" in r), math.nan)
        print(f"{name}: {case.model}, {parameters:.2f} M parameters, {size}, batches of {case.batch}")
    width = max(map(len, ["model", *o.models]))
    print(f"\n{'model':{width}} {'way':12} {'ms a step':>9} {'(least to most)':>20} {'× plain':>7}", end="")
    print(f" {'first use':>11} {'loss differs':>12}")
    for row in rows:
        print(line(row, width))
    worst = max((row.get("difference", 0.0) for row in rows if "error" not in row), default=0.0)
    tolerance = {"fp32": "1e-3", "tf32": "1e-2", "bf16": "5e-2"}[o.precision]
    print(f"\nThe largest relative difference of a loss is {worst:.1e}; up to {tolerance} is usual in {o.precision}.")


def assigned(text: str) -> dict[str, int]:
    return {name: int(value) for name, _, value in (part.rpartition("=") for part in text.split(","))}


def options(arguments: Sequence[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(CASES), help="a,b,c of these, or any model that fedchoir knows")
    parser.add_argument("--ways", help=f"some of {','.join(WAYS)}; on a CPU by default without compile")
    parser.add_argument("--sizes", type=assigned, default={}, help="sides of images: resnet50=160,vit_tiny=224")
    parser.add_argument("--batches", type=assigned, default={}, help="samples in a batch: resnet50=64,mlp=1024")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "tf32", "bf16"))
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--steps", type=int, help=f"in a block; a multiple of {PASS} if there are more")
    parser.add_argument("--blocks", type=int, help="of each way; the ways take turns")
    parser.add_argument("--seconds", type=float, help="for everything; what is left then is not measured")
    parser.add_argument("--compile-timeout", type=float, default=60.0, help="seconds for each model")
    parser.add_argument("--compile-at-once", type=int, default=1, help="models that compile together")
    parser.add_argument("--cache", type=Path, help="folder for compiled kernels; default: an empty one")
    parser.add_argument("--autotune", action="store_true", help="let cuDNN try its kernels, in all ways")
    parser.add_argument("--verbose", action="store_true", help="show what the processes print")
    parser.add_argument("--out", type=Path, help="file for everything that was measured, as JSON")
    o = parser.parse_args(arguments)
    small = o.device == "cpu"
    o.steps, o.blocks = o.steps or (2 if small else 20), o.blocks or (2 if small else 5)
    o.steps = o.steps if o.steps <= PASS else PASS * math.ceil(o.steps / PASS)
    o.seconds = o.seconds or (120.0 if small else 240.0)
    o.ways = o.ways.split(",") if o.ways else [way for way in WAYS if not (small and way == "compile")]
    if unknown := set(o.ways) - set(WAYS):
        parser.error(f"unknown ways: {', '.join(unknown)}")
    cases = {name: CASES.get(name, Case(name, 32, 64)) for name in o.models.split(",")}
    o.models = {
        name: Case(
            case.model,
            o.sizes.get(name, min(case.side, 64) if small else case.side),
            o.batches.get(name, 4 if small else case.batch),
        )
        for name, case in cases.items()
    }
    return o


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    o = options(arguments)
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)
    with TemporaryDirectory() as folder:
        o.cache = (o.cache or Path(folder)).resolve()
        rows = measure(o)
    report(rows, o)
    if o.out:
        facts = {"device": o.device, "precision": o.precision, "steps": o.steps, "lr": o.lr, "rows": rows}
        o.out.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return rows


if __name__ == "__main__":
    main()
