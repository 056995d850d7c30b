"""A round of pfl-research's CIFAR-10 benchmark, alternately by fedchoir and by the ``pfl`` package.

    python -m venv pflenv && pflenv/bin/pip install 'pfl[pytorch]'
    python benchmarks/pfl.py --pfl-python pflenv/bin/python --data-root DATA     # DATA/cifar10.npz, else synthetic

1000 clients with 50 images, 50 in a round, one local epoch in batches of 10, SGD with lr 0.1, the CNN with two
convolutions (`cnn2`), float32, one thread each, no evaluation. Both take the same steps on the same images; fedchoir
normalises them in every round, pfl gets them normalised. The ratio is measured in one run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch

from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.image.pixels import normalise
from synthetic_federation import Seconds, federation, from_npz, synthetic, timed_rounds

CLIENTS, EACH, COHORT, BATCH = 1000, 50, 50, 10


class Pfl:
    """A process that runs pfl, one iteration at a time."""

    def __init__(self, python: Path, pool: ImageSet, folder: Path, clients: int, channels_last: bool) -> None:
        path = folder / "images.npz"
        np.savez(path, x=normalise(pool.inputs, pool.mean, pool.std).numpy(), y=pool.labels.numpy())
        worker = Path(__file__).with_name("pfl_worker.py")
        numbers = [str(n) for n in (clients, EACH, COHORT, int(channels_last))]
        self._process = subprocess.Popen(
            [str(python), "-I", str(worker), str(path), *numbers],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, "PFL_PYTORCH_DEVICE": "cpu"},
        )  # fmt: skip

    def round(self) -> Seconds:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        line = next((line for line in self._process.stdout if line.startswith("{")), "")  # pfl prints other lines too
        if not line:
            raise SystemExit("the pfl process ended: is pfl[pytorch] in that environment?")
        reply = json.loads(line)
        assert reply["steps"] == COHORT * EACH // BATCH, f"pfl took {reply['steps']} steps"
        return Seconds(reply["wall"], reply["cpu"])

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pfl-python", type=Path, required=True, help="interpreter of an environment with pfl")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--channels-last", action="store_true", help="give pfl's model fedchoir's memory format")
    o = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    pool, test = from_npz(o.data_root / "cifar10.npz", 32) if o.data_root else (synthetic(10_000, 32), None)
    clients = min(CLIENTS, len(pool) // EACH)
    server = federation(
        "fedavg", "cnn2", pool, test or pool, clients=clients, each=EACH, local_epochs=1, local_batch=BATCH,
        optimizer="sgd", local_lr=0.1, fraction=COHORT / clients, evaluate_every=100_000,
    )  # fmt: skip
    ours = timed_rounds(server)
    with tempfile.TemporaryDirectory() as folder:
        theirs = Pfl(o.pfl_python, pool, Path(folder), clients, o.channels_last)
        try:
            next(ours), theirs.round()  # warm up; pfl also evaluates in its first iteration
            pairs = []
            for _ in range(o.rounds):
                pairs.append((next(ours)[0], theirs.round()))
                a, b = pairs[-1]
                print(
                    f"fedchoir {a.wall:.2f} s (CPU {a.cpu:.2f} s), pfl {b.wall:.2f} s (CPU {b.cpu:.2f} s)", flush=True
                )
        finally:
            theirs.close()
    print(f"{clients} clients, {COHORT} per round; pfl / fedchoir:")
    for kind, what in (("wall", "wall-clock"), ("cpu", "CPU")):
        ratios = [getattr(b, kind) / getattr(a, kind) for a, b in pairs]
        print(f"  {what}: median {statistics.median(ratios):.2f} (min {min(ratios):.2f}, max {max(ratios):.2f})")


if __name__ == "__main__":
    main()
