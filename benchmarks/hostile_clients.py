"""Accuracy under attack with and without robust aggregation: digits-lite, eight clients, two hostile.

python benchmarks/hostile_clients.py [--rounds 3]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from fedchoir import Experiment, run

RULES = ("mean", "median", "trimmed_mean", "krum")
ATTACKS = ("none", "sign_flip", "noise", "label_flip", "nan")
CLIENTS, HOSTILE = 8, 2
SETTINGS = {
    "clients": CLIENTS, "local_epochs": 3, "local_batch": 32, "public_size": 200, "public_batch": 100,
    "weighting": "uniform", "robust_share": HOSTILE / CLIENTS,
}  # fmt: skip


def accuracy(method: str, attack: str, rule: str, rounds: int, folder: Path) -> float:
    """Mean intra-domain accuracy of the honest clients."""
    hostile = HOSTILE if attack != "none" else 0
    settings = {**SETTINGS, "attack": attack, "attackers": hostile, "robust": rule}
    result = run(
        Experiment(
            method=method, models=("simple_cnn@8",), rounds=rounds, device="cpu", settings=settings,
            out=folder / f"{method}-{attack}-{rule}",
        )
    )  # fmt: skip
    honest = result.intra[: CLIENTS - HOSTILE]
    return sum(honest) / len(honest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=["fedavg", "fedmd"])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for method in arguments.methods:
            print(f"\n{method}: intra-domain accuracy of the {CLIENTS - HOSTILE} honest clients, {HOSTILE} hostile")
            print("attack     | " + " | ".join(f"{rule:>12}" for rule in RULES))
            for attack in ATTACKS:
                cells = [accuracy(method, attack, rule, arguments.rounds, Path(folder)) for rule in RULES]
                print(f"{attack:10} | " + " | ".join(f"{cell:12.1f}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
