"""What checkpoints cost: the same rounds with a checkpoint after every round, waited for or in the background, with
``auto`` and with ``never``.

Twenty clients train ResNets on small synthetic images, one client after the other in one process. All ways take turns
in one run, several times, so that other load on the machine affects them alike. Every way ends with a checkpoint of the
last round, so *rounds* is the time up to there and *all* includes it. *waited* is the time that the run stood still for
checkpoints. In the background the thread that writes still needs a processor: where training uses all of them, it takes
longer, which *rounds* shows and *waited* does not.

Usage: python benchmarks/checkpoints.py [--rounds 8] [--repeats 2] [--model resnet18] [--device cuda]
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from fedchoir.core import checkpoint
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.experiments.budget import client_sizes
from fedchoir.experiments.checkpoints import Checkpoints, Every
from synthetic_federation import federation, synthetic

WAYS: dict[str, tuple[Every, bool]] = {
    "every round, waited for": (1, False),
    "every round, in the background": (1, True),
    "auto": ("auto", True),
    "never": ("never", True),
}
"""``checkpoint_every``, and whether the thread writes while the run goes on."""


@dataclass(frozen=True)
class Measured:
    """Seconds of one run, and how many checkpoints it wrote."""

    rounds: float
    everything: float
    waited: float
    waited_in_rounds: float
    written: int


def measure(every: Every, background: bool, o: argparse.Namespace, folder: Path) -> Measured:
    images = synthetic(o.clients * o.images, o.size)
    server = federation(
        "solo", o.model, images, synthetic(20, o.size, seed=1), clients=o.clients, each=o.images, rounds=o.rounds,
        folder=folder, local_epochs=1, local_batch=o.batch, evaluate_every=1000, device=o.device,
    )  # fmt: skip
    assert isinstance(server.engine, LocalEngine)
    size = 4 * sum(map(sum, client_sizes(server.method, server.engine)))  # type: ignore[arg-type]
    checkpoints = Checkpoints(server, every, memory=2e9, size=size, background=background)
    written: set[Path | None] = {None}
    start = time.perf_counter()
    with checkpoints:
        for _ in checkpoints.rounds():
            checkpoints.recorded()
            written.add(checkpoint.latest(folder / "checkpoint"))
        rounds, waited = time.perf_counter() - start, checkpoints.waited
    written.add(checkpoint.latest(folder / "checkpoint"))
    return Measured(rounds, time.perf_counter() - start, checkpoints.waited, waited, len(written) - 1)


def run(every: Every, background: bool, o: argparse.Namespace) -> tuple[Measured, int]:
    """What one run took, and the bytes of its last checkpoint."""
    with tempfile.TemporaryDirectory(dir=o.folder) as folder:
        measured = measure(every, background, o, Path(folder))
        last = checkpoint.latest(Path(folder) / "checkpoint")
        assert last is not None
        return measured, sum(file.stat().st_size for file in last.iterdir())


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--images", type=int, default=16, help="of each client")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=32, help="side of the images")
    parser.add_argument("--model", default="resnet18@32")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", type=Path, help="where the checkpoints are written; default: a temporary folder")
    o = parser.parse_args(arguments)
    data = f"{o.images} images of {o.size}×{o.size}, batches of {o.batch}"
    print(f"{o.clients} clients, {o.model}, {data}, {o.rounds} rounds, medians of {o.repeats}")
    print(
        f"{o.device}, {torch.get_num_threads()} threads, torch {torch.__version__}, Python {platform.python_version()}"
    )
    found: dict[str, list[Measured]] = {way: [] for way in WAYS}
    warm = argparse.Namespace(**{**vars(o), "rounds": 1})
    print(f"a checkpoint has {run(*WAYS['never'], warm)[1] / 1e6:.0f} MB")
    for _ in range(o.repeats):
        for way, options in WAYS.items():
            found[way].append(run(*options, o)[0])
            print(f"one run, {way}: {found[way][-1].rounds:.1f} s", flush=True)
    print(f"{'checkpoints':32s} {'rounds':>8s} {'all':>8s} {'waited in rounds':>17s} {'waited in all':>14s} written")
    for way, runs in found.items():
        rounds, everything = (statistics.median(getattr(m, name) for m in runs) for name in ("rounds", "everything"))
        shares = [statistics.median(m.waited_in_rounds / m.rounds for m in runs)]
        shares += [statistics.median(m.waited / m.everything for m in runs)]
        written = ", ".join(str(m.written) for m in runs)
        print(f"{way:32s} {rounds:7.1f}s {everything:7.1f}s {shares[0]:16.1%} {shares[1]:13.1%}  {written}", flush=True)


if __name__ == "__main__":
    main()
