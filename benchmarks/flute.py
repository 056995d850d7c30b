"""FLUTE's benchmark: logistic regression on MNIST, 1000 clients, 10 a round, batch 10, lr 0.03, 100 rounds, on a CPU.

    python benchmarks/flute.py --data-root DATA      # DATA/mnist.npz; without it scikit-learn's small digits

Published for it: FLUTE 3:20, Flower 1.0 30:14 (on their machine). A client has 60 images, as when MNIST's 60,000 are
dealt out to 1000; where the file has fewer, clients share some. Everything is timed: building the federation, rounds,
a checkpoint after each, and tests on the whole test set every 20 rounds and in the last three. In the same run the
clients also train one by one instead of in unison.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

from crowd import Seconds, as_they_are, federation, from_npz, timed_rounds
from fedchoir.data.image.image_set import ImageSet, as_images

SIZE, BAR, FLUTE, FLOWER = 28, 20.0, 200.0, 1814.0


def images(root: Path | None) -> tuple[ImageSet, ImageSet]:
    if root is not None:
        return from_npz(root / "mnist.npz", SIZE)
    digits = load_digits()
    whole = as_images((digits.images / 16).astype(np.float32), SIZE)
    labels = torch.from_numpy(digits.target).long()
    return ImageSet(whole[:1400], labels[:1400]), ImageSet(whole[1400:], labels[1400:])


def play(pool: ImageSet, test: ImageSet, rounds: int, together: str) -> tuple[Seconds, float]:
    """Seconds from nothing to the last round, and the last accuracy."""
    start, work = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        played = federation(
            "fedavg", "logistic", pool, test, clients=1000, each=60, rounds=rounds, folder=Path(folder),
            local_epochs=1, local_batch=10, optimizer="sgd", local_lr=0.03, fraction=0.01, evaluate_every=20,
            together=together,
        )  # fmt: skip
        events = [event for _, event in timed_rounds(played)]
    return Seconds(time.perf_counter() - start, time.process_time() - work), events[-1]["intra_avg"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    pool, test = map(as_they_are, images(o.data_root))
    print(f"{len(pool)} training and {len(test)} test images, {o.rounds} rounds, {o.threads} thread")
    found = {together: play(pool, test, o.rounds, together) for together in ("auto", "never")}
    for name, together in (("in unison", "auto"), ("one by one", "never")):
        taken, accuracy = found[together]
        print(f"{name}: {taken.wall:.1f} s by the clock, {taken.cpu:.1f} s of work, accuracy {accuracy:.1f} %")
    seconds = found["auto"][0]
    print(f"one by one / in unison: {found['never'][0].cpu / seconds.cpu:.2f} (work); bar {BAR:.0f} s: "
          f"{seconds.wall / BAR:.2f} of it; FLUTE's published 3:20 is {FLUTE / seconds.wall:.0f} times this, "
          f"Flower 1.0's 30:14 {FLOWER / seconds.wall:.0f} times (other machines)")  # fmt: skip


if __name__ == "__main__":
    main()
