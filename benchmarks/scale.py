"""Time per client and round, and peak memory, by the number of clients K; the same number takes part in each round.

    python benchmarks/scale.py [--clients 10,100,1000,10000] [--method fedavg] [--model simple_cnn@16]

Each K runs in new processes (memory is the peak of a process). The values of K alternate, so that other load on the
machine affects all alike. A round includes exchange, checks, aggregation and checkpoint. The images of all clients are
windows into one pool, so only the simulator's own memory grows with K. Ratios are to the smallest K.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from fedchoir.utils.sizes import parse_size
from synthetic_federation import federation, synthetic, timed_rounds


def measure(o: argparse.Namespace) -> dict[str, float]:
    """One K, in this process: milliseconds per client of the median round, and the peak memory in MB."""
    torch.set_num_threads(1)
    pool, test = synthetic(2000, 32), synthetic(100, 32, seed=1)
    with tempfile.TemporaryDirectory() as folder:
        server = federation(
            o.method, o.model, pool, test, clients=o.one, each=20, folder=Path(folder), budget=parse_size(o.budget),
            local_epochs=1, local_batch=10, optimizer="sgd", local_lr=0.03, fraction=min(1.0, o.cohort / o.one),
            evaluate_every=100_000,
        )  # fmt: skip
        seconds = [s for (s, _), _ in zip(timed_rounds(server), range(o.rounds + 2), strict=False)][2:]
    wall, cpu = (1000 * statistics.median(getattr(s, kind) for s in seconds) / o.cohort for kind in ("wall", "cpu"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"wall": wall, "cpu": cpu, "peak": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", default="10,100,1000,10000")
    parser.add_argument("--cohort", type=int, default=10, help="clients in a round")
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--model", default="simple_cnn@16")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--budget", default="2GB")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.one:
        print(json.dumps(measure(o)))
        return
    counts = [int(k) for k in o.clients.split(",")]
    found: dict[int, list[dict[str, float]]] = {k: [] for k in counts}
    for _ in range(o.repeats):
        for k in counts:
            command = [sys.executable, __file__, *sys.argv[1:], "--one", str(k)]
            found[k].append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    best = {k: {key: min(run[key] for run in runs) for key in ("wall", "cpu", "peak")} for k, runs in found.items()}
    first = best[counts[0]]
    print(f"{o.method}, {o.model}, {o.cohort} of K clients a round, one thread; best of {o.repeats} processes")
    for k, now in best.items():
        print(
            f"K = {k:6d}: CPU {now['cpu']:6.2f} ms ({now['cpu'] / first['cpu']:.2f} ×), wall-clock "
            f"{now['wall']:6.2f} ms ({now['wall'] / first['wall']:.2f} ×) per client and round, "
            f"peak {now['peak']:5.0f} MB ({now['peak'] / first['peak']:.2f} ×)"
        )


if __name__ == "__main__":
    main()
