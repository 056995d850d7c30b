"""Memory and start-up time of a run on more images than fit into memory.

    python benchmarks/large_images.py [--images 100000] [--size 224] [--folder DIR] [--keep] [--divide 1]

Makes JPEG files of two clients with ten classes, no two alike, and starts FedAvg with a small model twice on the CPU,
each in a new process: one round with one epoch over all training images, and a test on all test images. The first run
decodes the images into the cache, the second one reads the cache. Start-up is the time from the start of the process
to the first round; on a machine that does other things, its CPU time says more. Memory is the peak of the process: all
of it (VmHWM), and without pages of mapped files, which the system can drop at any time (RssAnon).
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CLIENTS, CLASSES = ("north", "south"), 10
PROBE_SECONDS = 0.02


def make(folder: Path, images: int, size: int) -> None:
    """``folder/<client>/<class>/<n>.jpg``: smooth colours that depend on the class, and noise."""
    places = [folder / client / f"class{label}" for client in CLIENTS for label in range(CLASSES)]
    each = images // len(places)
    with ProcessPoolExecutor() as pool:
        list(pool.map(make_class, places, range(len(places)), [each] * len(places), [size] * len(places)))


def make_class(place: Path, seed: int, count: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    place.mkdir(parents=True, exist_ok=True)
    centre = np.random.default_rng(seed % CLASSES).integers(40, 216, (4, 4, 3))
    for n in range(count):
        if (path := place / f"{n:06}.jpg").exists():
            continue
        coarse = (centre + rng.normal(0, 30, centre.shape)).clip(0, 255).astype(np.uint8)
        Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC).save(path, quality=80)


def status(field: str) -> int:
    """A field of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


class PeakMemory(threading.Thread):
    """Samples the memory that is not backed by files; the kernel keeps the peak of the total itself."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.anonymous = 0

    def run(self) -> None:
        while True:
            self.anonymous = max(self.anonymous, status("RssAnon"))
            time.sleep(PROBE_SECONDS)


def measure(o: argparse.Namespace) -> dict[str, float]:
    """One run, in this process."""
    peak = PeakMemory()
    peak.start()
    from fedchoir import Experiment, run
    from fedchoir.core import activation_checkpointing, batches, evaluation
    from fedchoir.data import mapped
    from fedchoir.data.image import loading
    from fedchoir.experiments.run import Observer

    loading.IN_MEMORY //= o.divide
    mapped.RESIDENT_BYTES //= o.divide
    batches.TRANSFORMED_BYTES //= o.divide
    evaluation.EVAL_BATCH["cpu"] //= min(o.divide, 25)
    activation_checkpointing.UNUSED_BYTES /= o.divide

    class FirstRound(Observer):
        seconds = cpu = 0.0

        def began(self, *_: Any) -> None:
            self.seconds, self.cpu = time.time() - o.began, time.process_time()

    first = FirstRound()
    settings = {"image_size": o.size, "local_epochs": 1, "local_batch": 32}
    with tempfile.TemporaryDirectory() as out:
        experiment = Experiment(
            method="fedavg", scenario=str(o.folder / "images"), models=(o.model,), rounds=1, device="cpu",
            cache=o.folder / "cache", out=Path(out) / "run", settings=settings,
        )  # fmt: skip
        result = run(experiment, observers=[first])
    return {
        "start": first.seconds, "start cpu": first.cpu, "total": time.time() - o.began, "peak": status("VmHWM"),
        "anonymous": peak.anonymous,
        "images": sum(client["train"] + client["test"] for client in result.clients),
        "accuracy": result.intra_avg,
    }  # fmt: skip


def in_new_process(o: argparse.Namespace) -> dict[str, float]:
    options = [f"--{name}={getattr(o, name)}" for name in ("size", "model", "divide", "folder")]
    command = [sys.executable, __file__, *options, f"--began={time.time()}"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def report(o: argparse.Namespace, log: Callable[[str], None] = print) -> list[dict[str, float]]:
    """Make the images, run twice, and print what was measured."""
    began = time.perf_counter()
    make(o.folder / "images", o.images, o.size)
    decoded = o.images * 3 * o.size**2
    seconds = time.perf_counter() - began
    log(f"{o.images} JPEG files of {o.size}×{o.size} made in {seconds:.0f} s; {decoded / 1e9:.2f} GB decoded")
    found = []
    for name in ("first start", "second start"):
        run = in_new_process(o)
        found.append(run)
        log(
            f"{name}: first round after {run['start']:.1f} s ({run['start cpu']:.1f} s of CPU time), end after "
            f"{run['total']:.0f} s; peak memory {run['peak'] / 1e9:.2f} GB, {run['anonymous'] / 1e9:.2f} GB without "
            f"mapped files; {run['images']:.0f} images, intra-domain accuracy {run['accuracy']:.1f} %"
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--model", default="logistic")
    parser.add_argument("--divide", type=int, default=1, help="divide fedchoir's limits, to try it with fewer images")
    parser.add_argument("--folder", type=Path, help="default: a temporary folder")
    parser.add_argument("--keep", action="store_true", help="keep images and cache")
    parser.add_argument("--began", type=float, default=0.0, help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.began:
        print(json.dumps(measure(o)))
        return
    o.folder = o.folder or Path(tempfile.mkdtemp())
    try:
        report(o)
    finally:
        if not o.keep:
            shutil.rmtree(o.folder)


if __name__ == "__main__":
    main()
