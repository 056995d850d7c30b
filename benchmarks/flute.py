"""FLUTE's benchmark: logistic regression on MNIST, 1000 clients, 10 a round, batch 10, lr 0.03, 100 rounds, on a CPU.

    python benchmarks/flute.py --data-root DATA      # DATA/mnist.npz; without it scikit-learn's small digits

Published for it: FLUTE 3:20, Flower 1.0 30:14 (on their machine). A client has 60 images: MNIST's 60,000 distributed
over 1000 clients; where the file has fewer, clients share some. Everything is timed: building the federation, the
rounds, a checkpoint after each, and an evaluation on the whole test set every 20 rounds and in the last three.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.image.pixels import as_images
from synthetic_federation import Seconds, federation, from_npz, timed_rounds, unnormalised

SIZE, GOAL, FLUTE, FLOWER = 28, 20.0, 200.0, 1814.0  # the last three in seconds


def images(root: Path | None) -> tuple[ImageSet, ImageSet]:
    if root is not None:
        return from_npz(root / "mnist.npz", SIZE)
    digits = load_digits()
    whole = as_images((digits.images / 16).astype(np.float32), SIZE)
    labels = torch.from_numpy(digits.target).long()
    return ImageSet(whole[:1400], labels[:1400]), ImageSet(whole[1400:], labels[1400:])


def train(pool: ImageSet, test: ImageSet, rounds: int) -> tuple[Seconds, float]:
    """Seconds from the start to the last round, and the last accuracy."""
    start, work = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        server = federation(
            "fedavg", "logistic", pool, test, clients=1000, each=60, rounds=rounds, folder=Path(folder),
            local_epochs=1, local_batch=10, optimizer="sgd", local_lr=0.03, fraction=0.01, evaluate_every=20,
        )  # fmt: skip
        events = [event for _, event in timed_rounds(server)]
    return Seconds(time.perf_counter() - start, time.process_time() - work), events[-1]["intra_avg"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    pool, test = map(unnormalised, images(o.data_root))
    print(f"{len(pool)} training and {len(test)} test images, {o.rounds} rounds, {o.threads} thread")
    seconds, accuracy = train(pool, test, o.rounds)
    print(f"wall-clock {seconds.wall:.1f} s, CPU {seconds.cpu:.1f} s, accuracy {accuracy:.1f} %")
    flute, flower = (published / seconds.wall for published in (FLUTE, FLOWER))
    print(f"{seconds.wall / GOAL:.2f} of the goal of {GOAL:.0f} s")
    print(f"FLUTE's published 3:20 is {flute:.0f} times this, Flower 1.0's 30:14 {flower:.0f} times (other machines)")


if __name__ == "__main__":
    main()
