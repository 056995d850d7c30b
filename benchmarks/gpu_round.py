"""Seconds of an FCCL+ round on the papers' Digits, on a GPU: steps run plainly, and captured and replayed.

    python benchmarks/gpu_round.py --data-root DATA --precision tf32 [--rounds 3] [--plain]

Private 150/80/5000/1800 images, 5000 public ones, 20 local epochs, four models tested on every test image each round.
The first round captures the steps and lets cuDNN choose its kernels: read the later ones.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from fedchoir import Experiment, experiment, methods, runner
from fedchoir.engines.local import LocalEngine
from fedchoir.federation.loop import Federation
from fedchoir.federation.training import EagerTrainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--precision", default="tf32", choices=("fp32", "tf32", "bf16"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--plain", action="store_true", help="no capture")
    parser.add_argument("--autotune", action="store_true", help="let cuDNN try its kernels")
    o = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device")
    torch.backends.cudnn.benchmark = o.autotune
    plan = experiment.plan(
        Experiment(method="fccl+", scenario="digits", public="cifar100", data_root=o.data_root, precision=o.precision)
    )
    scenario, public = runner.load(plan), runner.load_public_set(plan)
    method = methods.get("fccl+")(plan.params, runner.make_task(plan, scenario, public))
    with runner.matmul_precision(plan):
        engine = LocalEngine(
            method, scenario, public, device=torch.device("cuda"), precision=o.precision,
            trainer=EagerTrainer() if o.plain else None,
        )  # fmt: skip
        rounds = Federation(method, engine, tuple(scenario.tests)).rounds()
        print(f"{torch.cuda.get_device_name()}, {o.precision}, {'plain' if o.plain else 'captured'}")
        for _ in range(o.rounds):
            for event in next(rounds):
                parts = "  ".join(f"{name} {value:.2f}" for name, value in event["seconds"].items())
                print(f"round {event['round']}: {parts} s", flush=True)


if __name__ == "__main__":
    main()
