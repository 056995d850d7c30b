"""Self-supervised clients against a random encoder: BYOL alone and FedFoA on a CIFAR-10 subset.

    python benchmarks/fedfoa_bar.py --data-root DATA --out runs/fedfoa-bar --precision tf32

Four clients with ResNet18, VGG-9, AlexNet and ResNet34 share the training images evenly (IID). The score is the linear
probe on each client's frozen features, mean of the last three rounds. There are two random encoders: as initialised, or
with BatchNorm statistics of the images (two rounds at a learning rate near zero), so that statistics alone do not meet
the goal. Finished runs are not repeated; stopped ones are resumed.

Choose options with ``--validation`` and other seeds: the score is then measured on a fifth of the training images,
which are not trained on, and the test images are not used.

The goal: in every seed BYOL alone and FedFoA exceed the better random encoder by 5 points, on average over the clients.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from fedchoir import Experiment, Result, run
from fedchoir.core.result import load_result

MODELS = ("resnet18", "vgg9", "alexnet", "resnet34")
MARGIN = 5.0
UNTRAINED: dict[str, Any] = {"local_epochs": 0}
STATISTICS: dict[str, Any] = {"local_epochs": 1, "local_lr": 1e-12}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=Path("runs/fedfoa-bar"))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--epochs", type=int, default=5, help="local epochs in a round")
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=0.032)
    parser.add_argument("--optimizer", default="sgd", choices=("sgd", "adam"))
    parser.add_argument("--objective", default="byol", choices=("byol", "simsiam", "simclr"))
    parser.add_argument("--images", type=int, default=None, help="total training images; default: all")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--methods", default="byol,fedfoa", help="beside the random encoders")
    parser.add_argument("--validation", action="store_true", help="evaluate on held-back training images")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "tf32", "bf16"))
    return parser.parse_args()


def experiment(o: argparse.Namespace, label: str, seed: int) -> Experiment:
    method, rounds, special = {
        "random": ("byol", 1, UNTRAINED),
        "random, statistics": ("byol", 2, STATISTICS),
        "byol": ("byol", o.rounds, {}),
        "fedfoa": ("fedfoa", o.rounds, {}),
    }[label]
    settings: dict[str, Any] = {
        "clients": 4, "partition": "iid", "local_epochs": o.epochs, "local_batch": o.batch, "local_lr": o.lr,
        "optimizer": o.optimizer, "objective": o.objective,
        "dim": o.dim, "hidden": o.hidden, "evaluate_every": o.rounds, "probe_data": "own", "probe_weight_decay": 0.0,
        **special,
    }  # fmt: skip
    if o.images:
        settings["private"] = o.images
    if o.validation:
        settings["test_split"] = "validation"
    return Experiment(
        method=method, scenario="cifar10", models=tuple(o.models.split(",")), rounds=rounds, seed=seed,
        data_root=o.data_root, device=o.device, precision=o.precision, settings=settings,
        out=o.out / f"{label.replace(', ', '-')}-seed{seed}",
    )  # fmt: skip


def outcome(e: Experiment) -> Result:
    assert e.out is not None
    if (e.out / "result.json").exists():
        return load_result(e.out)
    return run(e, resume=(e.out / "experiment.toml").exists())


def main() -> None:
    o = options()
    seeds = [int(seed) for seed in o.seeds.split(",")]
    results: dict[str, list[Result]] = {}
    for label in ("random", "random, statistics", *o.methods.split(",")):
        for seed in seeds:
            result = outcome(experiment(o, label, seed))
            results.setdefault(label, []).append(result)
            rows = "  ".join(f"{c['model']} {a:5.2f}" for c, a in zip(result.clients, result.intra, strict=True))
            took = f"{result.seconds['total']:.0f} s, {result.bytes_up:,} bytes up"
            print(f"{label:18} seed {seed}: {result.intra_avg:5.2f}   {rows}   ({took})", flush=True)
    raise SystemExit(not summary(results))


def summary(results: dict[str, list[Result]]) -> bool:
    """Print mean and spread over seeds; True if the goal is met in each."""
    met = True
    random = [
        max(a.intra_avg, b.intra_avg) for a, b in zip(results["random"], results["random, statistics"], strict=True)
    ]
    for label, found in results.items():
        scores = [result.intra_avg for result in found]
        spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
        line = f"{label:18} {statistics.mean(scores):5.2f} ± {spread:.2f}"
        if not label.startswith("random"):
            margins = [score - floor for score, floor in zip(scores, random, strict=True)]
            met &= min(margins) >= MARGIN
            line += "   over the better random encoder: " + ", ".join(f"{m:+.2f}" for m in margins)
        print(line)
    print(f"the goal of {MARGIN} points is {'met' if met else 'MISSED'}")
    return met


if __name__ == "__main__":
    main()
