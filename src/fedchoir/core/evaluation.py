"""Accuracies: one row per model, one column per test set."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedchoir.data.image.image_set import ImageSet, normalise

EVAL_BATCH = {"cpu": 250, "cuda": 1024}  # small enough for memory, large enough to keep the device busy


def batch_for(device: torch.device) -> int:
    """The batch size of forward passes without gradients."""
    return EVAL_BATCH.get(device.type, EVAL_BATCH["cpu"])


def accuracy(logits: Callable[[Tensor], Tensor], test: ImageSet, top_k: int = 1) -> float:
    """Share of the test images, in percent, whose label is among the ``top_k`` largest logits."""
    return accuracies(logits, [test], top_k)[0]


def accuracies(logits: Callable[[Tensor], Tensor], tests: Iterable[ImageSet], top_k: int = 1) -> list[float]:
    """The accuracy on each test set. Small consecutive sets share batches."""
    found: list[float] = []
    for group in _groups(tests):
        lengths = [len(test) for test in group]
        hits = _hits(logits, group[0] if len(group) == 1 else _joined(group), top_k)
        found += [100.0 * int(chunk.sum()) / len(chunk) for chunk in hits.split(lengths)]
    return found


@torch.no_grad()
def _hits(logits: Callable[[Tensor], Tensor], test: ImageSet, top_k: int) -> Tensor:
    """Whether each label is among the ``top_k`` largest logits: N, bool, on the CPU."""
    size = batch_for(test.images.device)
    hits = []
    for start in range(0, len(test), size):
        images = normalise(test.images[start : start + size], test.mean, test.std)
        z = logits(images.contiguous(memory_format=torch.channels_last))
        best = z.topk(min(top_k, z.shape[1]), dim=1).indices
        hits.append((best == test.labels[start : start + size, None]).any(1))
    return torch.cat(hits).cpu()


def _groups(tests: Iterable[ImageSet]) -> Iterator[list[ImageSet]]:
    """Groups of consecutive sets that fit into one batch; larger sets alone."""
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


def intra_inter(row: Sequence[float], domain: int | None) -> tuple[float, float | None]:
    """Intra-domain accuracy (eq. 21 of FCCL+) and the mean over the other domains (eq. 22), if there are any.

    >>> intra_inter([90.0, 40.0, 20.0], domain=0)
    (90.0, 30.0)
    """
    if domain is None:
        return sum(row) / len(row), None
    others = [value for j, value in enumerate(row) if j != domain]
    return row[domain], sum(others) / len(others) if others else None


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
