"""Membership inference against a client's model and against its public logits, with and without differential privacy.

Both attackers use the loss threshold of Yeom et al. (2018). One holds the client's model (the most that weight
averaging reveals). The other holds only FedMD's payloads, the logits on public images, and distils a model from them.
An AUC of 0.5 is guessing.

A model that has learned little reveals little, with or without noise. So compare a noisy run with runs without noise
that stop early at about the same accuracy (--epochs), and with an untrained model (--epochs 0).

    python benchmarks/membership.py [--noise 0 0.5 1 2] [--epochs 20]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from typing import Any

import torch
from torch import nn

from fedchoir import Experiment
from fedchoir.core.server import Server
from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.image.pixels import normalise
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.prepare import prepare
from fedchoir.models import build
from fedchoir.privacy import dp, membership
from fedchoir.utils.rng import seeded

MODEL = "simple_cnn@16"
SETTINGS = {"private": 100, "local_epochs": 20, "local_batch": 20, "public_size": 500, "public_batch": 100}
ROUNDS = 3


def train(noise: float, epochs: int, seed: int) -> tuple[Any, Any, list[float]]:
    """FedMD on digits-lite: the engine, the scenario, and each client's ε."""
    settings = {**SETTINGS, "dp_noise": noise, "local_epochs": epochs, "evaluate_every": ROUNDS}
    experiment = Experiment(method="fedmd", models=(MODEL,), rounds=ROUNDS, seed=seed, device="cpu", settings=settings)
    plan = make_plan(experiment)
    method, scenario, public = prepare(plan)
    engine = LocalEngine(method, scenario, public, device=torch.device("cpu"))
    for _ in Server(method, engine, tuple(scenario.tests)).rounds():
        pass
    cost = dp.spent(method, [info.train for info in method.spec.clients], ROUNDS) if noise else []
    return engine, scenario, cost


def auc(logits: Any, seen: ImageSet, unseen: ImageSet) -> float:
    count = torch.arange(min(len(seen), len(unseen)))
    pair = [images.subset(count) for images in (seen, unseen)]
    with torch.no_grad():
        outputs = [logits(normalise(images.inputs, images.mean, images.std)) for images in pair]
    return membership.loss_attack(
        *(membership.losses(z, images.labels) for z, images in zip(outputs, pair, strict=True))
    ).value


def distilled(engine: Any, client: Any, seed: int) -> nn.Module:
    """A student that was trained on public images and the client's logits alone."""
    r = engine.method.spec.round(ROUNDS - 1, engine.method.params)
    batches = [batch for group in r.public_batches() for batch in group]
    client.begin(ROUNDS - 1)
    released = [(client.public_samples(batch), engine.method.share(client, batch)["logits"]) for batch in batches]
    with seeded(seed, "student"):
        student = build(MODEL, len(engine.method.spec.classes))
    return membership.distilled(student, released)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0, 0.5, 1.0, 2.0])
    parser.add_argument("--epochs", type=int, nargs="+", default=[20], help="local epochs in each of three rounds")
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    print("noise | epochs |  ε (δ=1e-5) | intra accuracy | AUC with the model | AUC with the logits | seconds")
    for noise, epochs in itertools.product(arguments.noise, arguments.epochs):
        start = time.perf_counter()
        rows = []
        for seed in range(arguments.seeds):
            engine, scenario, cost = train(noise, epochs, seed)
            for k, client in enumerate(engine.clients):
                test = scenario.tests[scenario.clients[k].domain]
                client.model.eval()
                model = auc(client.logits, client.private, test)
                accuracy = engine.method.evaluate(client, [test])[0].accuracy
                student = distilled(engine, client, seed)
                rows.append((accuracy, model, auc(student, client.private, test), max(cost, default=float("inf"))))
        accuracy, model, logits, epsilon = (sum(column) / len(column) for column in zip(*rows, strict=True))
        seconds = time.perf_counter() - start
        spread = [statistics.stdev(column) for column in list(zip(*rows, strict=True))[1:3]]
        held = " | ".join(f"{value:12.3f} ± {sd:.3f}" for value, sd in zip((model, logits), spread, strict=True))
        print(f"{noise:5.2f} | {epochs:6} | {epsilon:11.2f} | {accuracy:14.1f} | {held} | {seconds:7.0f}", flush=True)


if __name__ == "__main__":
    main()
