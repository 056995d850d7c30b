"""What a model keeps when it is trained by another client: one exchange of a finished run, played again and watched.

FedCT Fig. 9 (accuracy of each class before and after), Fig. 2 and 10 (CKA before and after, and between clients).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedchoir.core.actions import Exchange, Step, perform
from fedchoir.core.client import Client
from fedchoir.data.image.image_set import ImageSet
from fedchoir.methods.fedexg import FedExg
from fedchoir.models import VisionModel
from fedchoir.payload import Payload
from fedchoir.reporting.analysis.cka import FEATURES, compare_layers, compare_models
from fedchoir.reporting.analysis.load import FinishedRun, ready
from fedchoir.utils.errors import UsageError

BATCH = 200
TEST_IMAGES = 1000


@dataclass(frozen=True)
class Moved:
    """A model that client ``source`` trained and client ``target`` trained after it."""

    source: int
    target: int
    before: VisionModel
    after: VisionModel


def play_exchange(run: FinishedRun) -> list[Moved]:
    """Local training from the last global model, then one exchange; every model before and after cross-training."""
    method = run.method
    if not isinstance(method, FedExg):
        raise UsageError(f"{run.folder}: {method.name} exchanges no models; fedexg, pgct and fedct do")
    last = method.task.rounds - 1
    clients = {k: run.clients[k] for k in method.task.round(last, method.params).clients}
    models: dict[int, Payload] = {}
    for k, client in clients.items():
        client.begin(last)
        if method.server:
            perform(client, Step(method.download, received=Payload(method.server)))
        perform(client, Step(method.local_update))
        (models[k],) = perform(client, Exchange(method.offer, dims=method.dims))
    if len(models) < 2:
        raise UsageError(f"{run.folder}: one client takes part in a round, so no models are exchanged")
    sent = method.broadcast(models, last, 0)
    moved = []
    for source, target in method.moves[-1]:
        client = clients[target]
        perform(client, Step(method.cross_train, received=sent))
        moved.append(
            Moved(source, target, twin(client, sent[target].under("weights")), twin(client, client.snapshot()))
        )
    return moved


def twin(client: Client, weights: dict[str, Tensor]) -> VisionModel:
    return client.frozen_copy({name: t.clone() for name, t in weights.items()})


@torch.no_grad()
def class_accuracy(model: VisionModel, test: ImageSet, classes: int) -> Tensor:
    """Accuracy in percent on each class (C); nan for a class that the test set lacks."""
    device = next(model.parameters()).device
    said = torch.cat([model.eval()(images.to(device)).argmax(dim=1).cpu() for images in ready(test).split(BATCH)])
    member = test.labels.cpu().unsqueeze(1) == torch.arange(classes)
    hits = (said == test.labels.cpu()).unsqueeze(1) & member
    return 100.0 * hits.sum(dim=0) / member.sum(dim=0)


def retention(run: FinishedRun, moved: list[Moved]) -> list[dict[str, Any]]:
    """For each model that moved: per class, its accuracy before and after, and the images at source and target.

    ``kept`` is the mean accuracy after over the mean before, on the classes that the source has: 1 is nothing lost.
    """
    test, classes = next(iter(run.scenario.tests.values())), len(run.scenario.classes)
    counts = [data.train.labels.bincount(minlength=classes) for data in run.scenario.clients]
    rows = []
    for move in moved:
        before, after = (class_accuracy(model, test, classes) for model in (move.before, move.after))
        known = (counts[move.source] > 0) & before.isfinite()
        had = float(before[known].mean())
        rows.append({
            "source": run.clients[move.source].name,
            "target": run.clients[move.target].name,
            "before": rounded(before),
            "after": rounded(after),
            "source_images": counts[move.source].tolist(),
            "target_images": counts[move.target].tolist(),
            "kept": round(float(after[known].mean()) / had, 4) if had > 0 else None,
        })  # fmt: skip
    return rows


def exchange_cka(run: FinishedRun, moved: list[Moved], count: int = TEST_IMAGES) -> dict[str, Any]:
    """CKA on test images: of each model before and after (local view, by layer), and between clients (global view)."""
    sample = ready(run.sample(next(iter(run.scenario.tests.values())), count, "cka"))
    device = next(moved[0].after.parameters()).device
    batches = [images.to(device) for images in sample.split(BATCH) if len(images) >= 4]
    local = [compare_layers(move.before, move.after, batches) for move in moved]
    between = compare_models([move.after for move in moved], batches)
    n = len(moved)
    return {
        "clients": [run.clients[move.source].name for move in moved],
        "local": {layer: [round(found[layer], 4) for found in local] for layer in local[0]},
        "local_mean": sum(found[FEATURES] for found in local) / n,
        "global": between.tolist(),
        "global_mean": float((between.sum() - between.diagonal().sum()) / (n * (n - 1))),
    }


def rounded(values: Tensor) -> list[float | None]:
    return [round(v, 2) if v == v else None for v in values.tolist()]
