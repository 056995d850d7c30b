"""Seconds of an FCCL+ round on the papers' Digits on a GPU: captured and replayed, or eager (`--eager`).

    python benchmarks/gpu_round.py --data-root DATA --precision tf32 [--rounds 3] [--eager]
    python benchmarks/gpu_round.py --data-root DATA --precision bf16 --fused --devices cuda:0,cuda:0,cuda:0,cuda:0

Private 150/80/5000/1800 images, 5000 public images, 20 local epochs, no pretraining, four models evaluated on every
test image each round. With --fused, kernels that are not in the cache are compiled while the engine starts, which has a
line of its own; the first round captures steps, so the later ones count. The engine's notes come last: also kernels
that were not compiled ahead. With several devices each client has a process of its own; for processes that overlap on
one GPU, start NVIDIA's MPS first (`nvidia-cuda-mps-control -d`). A round's seconds are wall-clock time; those of a
phase are the slowest process's.
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from pathlib import Path

import torch

from fedchoir import Experiment
from fedchoir.core.interfaces import Engine
from fedchoir.core.server import Server
from fedchoir.core.training import EagerTrainer
from fedchoir.engines.factory import started_engine
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.prepare import prepare
from fedchoir.experiments.run import matmul_precision
from fedchoir.utils.devices import pick_devices


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--precision", default="tf32", choices=("fp32", "tf32", "bf16"))
    parser.add_argument("--profile", default="fixed", help="paper: batches of 512 and 256 instead of 256 and 128")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--fused", action="store_true", help="fused layers")
    parser.add_argument("--devices", help="cuda:0,cuda:0: one process each")
    parser.add_argument("--autotune", action="store_true", help="let cuDNN try its kernels")
    o = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device")
    torch.backends.cudnn.benchmark = o.autotune
    experiment = Experiment(
        method="fccl+", scenario="digits", public="cifar100", profile=o.profile, precision=o.precision,
        data_root=o.data_root, settings={"pretrain_epochs": 0},
    )  # fmt: skip
    plan = make_plan(experiment)
    method, scenario, public = prepare(plan)
    devices = pick_devices(o.devices.split(",") if o.devices else None, "cuda")
    with matmul_precision(plan.experiment.precision), ExitStack() as stack:
        start = time.perf_counter()
        if o.eager:
            device = torch.device("cuda")
            engine: Engine = LocalEngine(
                method, scenario, public, device=device, precision=o.precision, trainer=EagerTrainer()
            )
        else:
            engine = stack.enter_context(
                started_engine(method, scenario, public, devices=devices, precision=o.precision, fused=o.fused)
            )
        started = time.perf_counter() - start
        rounds = Server(method, engine, tuple(scenario.tests)).rounds()
        how = ["eager" if o.eager else "captured", *(["fused"] if o.fused else [])]
        batches = f"batches of {plan.params.public_batch} and {plan.params.local_batch}"
        print(f"{torch.cuda.get_device_name()}, {len(devices)} processes, {o.precision}, {', '.join(how)}, {batches}")
        print(f"engine started in {started:.2f} s", flush=True)
        for _ in range(o.rounds):
            start = time.perf_counter()
            events = next(rounds)
            took = time.perf_counter() - start
            for event in events:
                phases = "  ".join(f"{name} {value:.2f}" for name, value in event["seconds"].items())
                accuracy = f"intra {event['intra_avg']:.1f} inter {event['inter_avg']:.1f}"
                print(f"round {event['round']}: {took:.2f} s ({phases})  {accuracy}", flush=True)
        for note in engine.notes:
            print(f"note: {note}", flush=True)


if __name__ == "__main__":
    main()
