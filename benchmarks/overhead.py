"""The overhead of an FCCL+ round over the bare forward and backward passes and optimiser steps in it.

Both alternate in one run, on batches of the same sizes, with the same models and losses:

- *round*: `Server` runs a round of FCCL+ on the local engine (exchange, checks, bookkeeping, augmentation);
- *bare*: the same passes and optimiser steps as plain loops over prepared tensors.

Usage: python benchmarks/overhead.py [--repeats 5] [--models a,b,c,d] [--device cpu]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedchoir import Experiment
from fedchoir.core.server import Server
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.prepare import prepare
from fedchoir.losses import fccm, fisl, fntd, instance_similarity

SETTINGS = {"local_epochs": 4, "local_batch": 32, "public_batch": 64, "public_size": 512, "evaluate_every": 1000}


def federation(models: tuple[str, ...], device: torch.device) -> Server:
    """Four clients on digits-lite; no round is evaluated."""
    experiment = Experiment(method="fccl+", scenario="digits-lite", models=models, rounds=10_000, settings=SETTINGS)
    plan = make_plan(experiment)
    method, scenario, public = prepare(plan)
    return Server(method, LocalEngine(method, scenario, public, device=device), tuple(scenario.tests))


def bare_round(engine: LocalEngine) -> Callable[[], None]:
    """The arithmetic of one round and nothing else. The tensors are prepared in advance."""
    p = engine.method.params
    work = []
    for client in engine.clients:
        n = len(client.private)
        images, labels = next(client.private_chunks(n))
        batches = [i for i in torch.randperm(n).split(p.local_batch) if len(i) > 1]
        private = [(images[i].contiguous(memory_format=torch.channels_last), labels[i]) for i in batches]
        shape = (p.public_size // p.public_batch, p.public_batch, 3, 32, 32)
        public = [x.contiguous(memory_format=torch.channels_last) for x in torch.randn(shape, device=client.device)]
        work.append((client, images, private, public))

    def outputs(model: torch.nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            h, z = model.features_and_logits(x)
            return z, instance_similarity(h, p.similarity_temperature)

    def run() -> None:
        optimizers = [torch.optim.Adam(c.model.parameters(), lr=1e-3, fused=True) for c, *_ in work]
        for number in range(p.public_size // p.public_batch):
            shared = [outputs(c.model.train(), public[number]) for c, _, _, public in work]
            z_mean = sum(z for z, _ in shared) / len(shared)
            s_mean = sum(s for _, s in shared) / len(shared)
            for (c, _, _, public), optimizer in zip(work, optimizers, strict=True):
                optimizer.zero_grad()
                h, z = c.model.features_and_logits(public[number])
                loss = fccm(z, z_mean) + p.omega * fisl(instance_similarity(h, p.similarity_temperature), s_mean)
                loss.backward()
                optimizer.step()
        for c, images, private, _ in work:
            with torch.no_grad():
                teacher = c.model.eval()(images).split(p.local_batch)
            c.model.train()
            optimizer = torch.optim.Adam(c.model.parameters(), lr=1e-3, fused=True)
            for _ in range(p.local_epochs):
                for (x, y), t in zip(private, teacher, strict=False):
                    optimizer.zero_grad()
                    z = c.model(x)
                    (cross_entropy(z, y) + fntd(z, t, y)).backward()
                    optimizer.step()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--models", default="resnet10@16,simple_cnn@16,vgg9@8,resnet12@8")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device(arguments.device)
    server = federation(tuple(arguments.models.split(",")), device)
    rounds = server.rounds()
    bare = bare_round(server.engine)  # type: ignore[arg-type]
    next(rounds), bare()  # warm up
    seconds: dict[str, list[float]] = {"round": [], "bare": []}
    for _ in range(arguments.repeats):
        for name, work in (("round", lambda: next(rounds)), ("bare", bare)):
            start = time.perf_counter()
            work()
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - start)
    ratios = [a / b for a, b in zip(seconds["round"], seconds["bare"], strict=True)]
    print(f"{device}, {torch.get_num_threads()} threads, {arguments.repeats} pairs; models {arguments.models}")
    print(f"bare {statistics.median(seconds['bare']):.2f} s, round {statistics.median(seconds['round']):.2f} s")
    print(f"round / bare: median {statistics.median(ratios):.3f} (min {min(ratios):.3f}, max {max(ratios):.3f})")


if __name__ == "__main__":
    main()
