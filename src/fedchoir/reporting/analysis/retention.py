"""Knowledge retention in FedCT: one model exchange of a finished run is repeated and measured.

FedCT Fig. 9 (accuracy per class before and after cross-training), Fig. 2 and 10 (CKA before and after, and between
clients).
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedchoir.core.actions import Exchange, Step, perform
from fedchoir.data.samples import Samples
from fedchoir.methods.fedexg import FedExg
from fedchoir.models import Model
from fedchoir.payload import Payload
from fedchoir.reporting.analysis.load import FinishedRun, normalised
from fedchoir.reporting.analysis.measures import FEATURES, compare_layers, compare_models
from fedchoir.utils.errors import UsageError

BATCH = 200
TEST_IMAGES = 1000


@dataclass(frozen=True)
class MovedModel:
    """The model that client ``source`` trained, before and after client ``target`` trained it."""

    source: int
    target: int
    before: Model
    after: Model


def repeat_exchange(run: FinishedRun) -> list[MovedModel]:
    """Train locally from the last global model, exchange models once, and return each before and after."""
    method = run.method
    if not isinstance(method, FedExg):
        raise UsageError(f"{run.folder}: {method.name} exchanges no models; fedexg, pgct and fedct do")
    last = method.spec.rounds - 1
    clients = {k: run.clients[k] for k in method.spec.round(last, method.params).clients}
    models: dict[int, Payload] = {}
    for k, client in clients.items():
        client.begin(last)
        if method.server:
            perform(client, Step(method.download, received=Payload(method.server)))
        perform(client, Step(method.local_update))
        (models[k],) = perform(client, Exchange(method.share_model, dims=method.dims))
    if len(models) < 2:
        raise UsageError(f"{run.folder}: only one client takes part in a round, so no models are exchanged")
    steps = method.broadcast(models, last, 0)
    moved = []
    trained: Counter[int] = Counter()
    for source, target in method.moves[-1]:
        client = clients[target]
        sent = Payload(steps[trained[target]][target], scalars={"exchange": 0.0})  # each model alone, not their mean
        trained[target] += 1
        perform(client, Step(method.cross_train, received=sent))
        before, after = (
            client.frozen_copy({name: t.clone() for name, t in weights.items()})
            for weights in (sent.under("weights"), client.snapshot())
        )
        moved.append(MovedModel(source, target, before, after))
    return moved


@torch.no_grad()
def class_accuracy(model: Model, test: Samples, classes: int) -> Tensor:
    """Accuracy in percent on each class (C); nan for a class that is not in the test set."""
    device = next(model.parameters()).device
    logits = [model.eval()(images.to(device)).cpu() for images in normalised(test).split(BATCH)]
    in_class = test.labels.cpu().unsqueeze(1) == torch.arange(classes)
    correct = (torch.cat(logits).argmax(dim=1) == test.labels.cpu()).unsqueeze(1) & in_class
    return 100.0 * correct.sum(dim=0) / in_class.sum(dim=0)


def retention(run: FinishedRun, moved: list[MovedModel]) -> list[dict[str, Any]]:
    """For each moved model: accuracy per class before and after, and the images per class at source and target.

    ``kept`` is the mean accuracy after divided by that before, over the classes that the source has.
    """
    test, classes = next(iter(run.scenario.tests.values())), len(run.scenario.classes)
    counts = [data.train.labels.bincount(minlength=classes) for data in run.scenario.clients]
    rows = []
    for move in moved:
        before, after = (class_accuracy(model, test, classes) for model in (move.before, move.after))
        known = (counts[move.source] > 0) & before.isfinite()
        mean_before = float(before[known].mean())
        rows.append({
            "source": run.names[move.source],
            "target": run.names[move.target],
            "before": _rounded(before),
            "after": _rounded(after),
            "source_images": counts[move.source].tolist(),
            "target_images": counts[move.target].tolist(),
            "kept": round(float(after[known].mean()) / mean_before, 4) if mean_before > 0 else None,
        })  # fmt: skip
    return rows


def exchange_cka(run: FinishedRun, moved: list[MovedModel], count: int = TEST_IMAGES) -> dict[str, Any]:
    """CKA on test images: of each model before and after (local, by layer), and between clients (global)."""
    sample = normalised(run.sample(next(iter(run.scenario.tests.values())), count, "cka"))
    device = next(moved[0].after.parameters()).device
    batches = [images.to(device) for images in sample.split(BATCH) if len(images) >= 4]
    local = [compare_layers(move.before, move.after, batches) for move in moved]
    between = compare_models([move.after for move in moved], batches)
    n = len(moved)
    return {
        "clients": [run.names[move.source] for move in moved],
        "local": {layer: [round(found[layer], 4) for found in local] for layer in local[0]},
        "local_mean": sum(found[FEATURES] for found in local) / n,
        "global": between.tolist(),
        "global_mean": float((between.sum() - between.diagonal().sum()) / (n * (n - 1))),
    }


def _rounded(values: Tensor) -> list[float | None]:
    return [round(v, 2) if v == v else None for v in values.tolist()]
