"""Accuracy: one row a model, one column a test set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedchoir.data.image.image_set import ImageSet, normalise

EVAL_BATCH = {"cpu": 250, "cuda": 1024}  # small enough for memory, large enough to keep the device busy


def batch_for(device: torch.device) -> int:
    """How many images a model is asked about at once, where nothing is learnt from them."""
    return EVAL_BATCH.get(device.type, EVAL_BATCH["cpu"])


def accuracy(logits: Callable[[Tensor], Tensor], test: ImageSet, top_k: int = 1) -> float:
    """Share of the test images, in percent, whose label is among the ``top_k`` largest logits."""
    return accuracies(logits, [test], top_k)[0]


def accuracies(logits: Callable[[Tensor], Tensor], tests: Iterable[ImageSet], top_k: int = 1) -> list[float]:
    """The accuracy on each of several test sets. Neighbours that are small share batches, so that ten thousand sets of
    one image cost what one set of ten thousand does."""
    found: list[float] = []
    for together in _gathered(tests):
        lengths = [len(test) for test in together]
        hits = _hits(logits, together[0] if len(together) == 1 else _joined(together), top_k)
        found += [100.0 * int(part.sum()) / len(part) for part in hits.split(lengths)]
    return found


@torch.no_grad()
def _hits(logits: Callable[[Tensor], Tensor], test: ImageSet, top_k: int) -> Tensor:
    """For each image whether its label is among the largest logits: N, bool, on the CPU."""
    size = batch_for(test.images.device)
    hits = []
    for start in range(0, len(test), size):
        images = normalise(test.images[start : start + size], test.mean, test.std)
        z = logits(images.contiguous(memory_format=torch.channels_last))
        best = z.topk(min(top_k, z.shape[1]), dim=1).indices
        hits.append((best == test.labels[start : start + size, None]).any(1))
    return torch.cat(hits).cpu()


def _gathered(tests: Iterable[ImageSet]) -> Iterator[list[ImageSet]]:
    """Neighbouring sets that fit into one batch together; larger ones alone."""
    group: list[ImageSet] = []
    for test in tests:
        size = batch_for(test.images.device)
        alike = group and (group[0].mean, group[0].std) == (test.mean, test.std)
        if group and not (alike and sum(map(len, group)) + len(test) <= size):
            yield group
            group = []
        group.append(test)
    if group:
        yield group


def _joined(tests: Sequence[ImageSet]) -> ImageSet:
    images, labels = torch.cat([test.images for test in tests]), torch.cat([test.labels for test in tests])
    return replace(tests[0], images=images, labels=labels)


def intra_inter(row: Sequence[float], home: int | None) -> tuple[float, float | None]:
    """Accuracy at home (eq. 21 of FCCL+) and the mean over the other test sets (eq. 22), if there are any.

    >>> intra_inter([90.0, 40.0, 20.0], home=0)
    (90.0, 30.0)
    """
    if home is None:
        return sum(row) / len(row), None
    others = [value for j, value in enumerate(row) if j != home]
    return row[home], sum(others) / len(others) if others else None


def last_rounds_mean(matrices: Sequence[Sequence[Sequence[float] | None]], last: int = 3) -> list[list[float]]:
    """The papers' reported number: the mean of the last three evaluated rounds, cell by cell.

    A row that is None is of a client that could not be asked in that round: its mean is over the rounds in which it
    could. (A client that never could has an empty row.)

    >>> last_rounds_mean([[[0.0]], [[1.0]], [[2.0]], [[6.0]]])
    [[3.0]]
    >>> last_rounds_mean([[[0.0], None], [[2.0], [5.0]]])
    [[1.0], [5.0]]
    """
    kept = matrices[-last:]
    rows = [[row for m in kept if (row := m[i]) is not None] for i in range(len(kept[0]))]
    return [[sum(cells) / len(cells) for cells in zip(*received, strict=True)] for received in rows]
