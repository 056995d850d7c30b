"""Evaluation of a model: accuracies, all metrics, and what papers report of them."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fedchoir.core.bootstrap import intervals
from fedchoir.core.metrics import METRICS, Predictions, defined_mean
from fedchoir.core.scores import Detail, TestScore
from fedchoir.data.samples import Samples, Transform
from fedchoir.utils.rng import generator

EVAL_BATCH = {"cpu": 250, "cuda": 1024}  # small enough for memory, large enough to keep the device busy

Predict = Callable[[Tensor], Tensor]
"""A model's inputs → logits or log-probabilities, B×C."""


def batch_for(device: torch.device) -> int:
    """The batch size of forward passes without gradients."""
    return EVAL_BATCH.get(device.type, EVAL_BATCH["cpu"])


def evaluate(
    predict: Predict,
    tests: Iterable[Samples],
    detail: Detail = "accuracy",
    *,
    top_k: int = 1,
    transform: Transform | None = None,
    seed: int = 0,
) -> list[TestScore]:
    """The scores on each test set. Small consecutive sets share batches.

    Args:
        detail: how much to compute beside the accuracies.
        top_k: for the accuracy.
        transform: the client's own, for test sets that have none of their own.
        seed: of the bootstrap; all models are resampled alike.
    """
    if detail == "accuracy":
        return [TestScore(percent(hits)) for _, hits, _ in _outputs(predict, tests, top_k, transform, keep=False)]
    return [score(p, detail, seed) for p in predictions(predict, tests, top_k=top_k, transform=transform)]


def score(p: Predictions, detail: Detail, seed: int) -> TestScore:
    """All metrics. A model whose outputs are not finite has an accuracy and nothing else."""
    accuracy = percent(torch.from_numpy(p.hits))
    if not np.isfinite(p.probabilities).all():
        return TestScore(accuracy, {**dict.fromkeys(METRICS), "accuracy": accuracy})
    metrics = {**{name: metric(p) for name, metric in METRICS.items()}, "accuracy": accuracy}
    if detail == "metrics":
        return TestScore(accuracy, metrics)
    found = intervals(p, generator(seed, "bootstrap", len(p.labels)))
    return TestScore(accuracy, metrics, {name: list(span) if span else None for name, span in found.items()})


def predictions(
    predict: Predict, tests: Iterable[Samples], *, top_k: int = 1, transform: Transform | None = None
) -> Iterator[Predictions]:
    """A model's probabilities on each test set."""
    for labels, hits, z in _outputs(predict, tests, top_k, transform, keep=True):
        yield Predictions(z.double().softmax(dim=1).numpy(), labels.numpy(), hits.numpy())


def percent(hits: Tensor) -> float:
    return 100.0 * int(hits.sum()) / len(hits)


@torch.no_grad()
def _outputs(
    predict: Predict, tests: Iterable[Samples], top_k: int, transform: Transform | None, *, keep: bool
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Of each test set, on the CPU: labels, whether each is among the ``top_k`` largest logits, and, where they are
    kept, the logits."""
    for group in _groups(tests):
        joined = group[0].joined(*group[1:]) if group[1:] else group[0]
        size, prepare = batch_for(joined.labels.device), joined.transform or transform
        hits: list[Tensor] = []
        logits: list[Tensor] = []
        for start in range(0, len(joined), size):
            inputs = joined.inputs[start : start + size]
            z = predict(inputs if prepare is None else prepare(inputs))
            best = z.topk(min(top_k, z.shape[1]), dim=1).indices
            hits.append((best == joined.labels[start : start + size, None]).any(1))
            logits.append(z if keep else z[:, :0])
        columns = (joined.labels, torch.cat(hits), torch.cat(logits))
        yield from zip(*(column.cpu().split([len(test) for test in group]) for column in columns), strict=True)


def _groups(tests: Iterable[Samples]) -> Iterator[list[Samples]]:
    """Groups of consecutive sets that fit into one batch; larger sets alone."""
    group: list[Samples] = []
    for test in tests:
        size = batch_for(test.labels.device)
        alike = group and group[0].transform == test.transform
        if group and not (alike and sum(map(len, group)) + len(test) <= size):
            yield group
            group = []
        group.append(test)
    if group:
        yield group


def intra_inter(row: Sequence[float | None], domain: int | None) -> tuple[float | None, float | None]:
    """Intra-domain score (eq. 21 of FCCL+) and the mean over the other domains (eq. 22), if there are any.

    A metric that is not defined on a test set does not count.

    >>> intra_inter([90.0, 40.0, 20.0], domain=0)
    (90.0, 30.0)
    """
    if domain is None:
        return defined_mean(row), None
    return row[domain], defined_mean([value for j, value in enumerate(row) if j != domain])


def last_rounds_mean(matrices: Sequence[Sequence[Sequence[float] | None]], last: int = 3) -> list[list[float]]:
    """The papers' reported number: the mean of the last three evaluated rounds, cell by cell.

    A row is None where a client did not evaluate in that round; its mean is over the other rounds. A client that never
    evaluated has an empty row.

    >>> last_rounds_mean([[[0.0]], [[1.0]], [[2.0]], [[6.0]]])
    [[3.0]]
    >>> last_rounds_mean([[[0.0], None], [[2.0], [5.0]]])
    [[1.0], [5.0]]
    """
    kept = matrices[-last:]
    rows = [[row for m in kept if (row := m[i]) is not None] for i in range(len(kept[0]))]
    return [[sum(cells) / len(cells) for cells in zip(*evaluated, strict=True)] for evaluated in rows]
