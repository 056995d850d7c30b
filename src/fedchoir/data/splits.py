"""Drawing and splitting labelled images: stratified samples, held-out parts, leak removal, label noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fedchoir.data.image.image_set import ImageSet, image_hashes

NoiseType = Literal["symmetric", "pair"]

HELD_OUT = 0.2


def apportion(weights: Tensor, total: int) -> Tensor:
    """Whole numbers in proportion to ``weights`` (C) that sum to ``total``: largest remainders, first on ties.

    >>> apportion(torch.tensor([1.0, 1.0, 2.0]), 5)
    tensor([1, 1, 3])
    """
    exact = weights.double() * (total / float(weights.sum()))
    counts = exact.floor().long()
    order = torch.argsort(exact - counts, descending=True, stable=True)
    counts[order[: total - int(counts.sum())]] += 1
    return counts


def stratified_sample(labels: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Positions of ``size`` of N labels, sorted, classes in proportion; no class is left out if ``size`` allows.

    >>> labels = torch.tensor([0] * 90 + [1] * 10)
    >>> labels[stratified_sample(labels, 10, torch.Generator())].bincount()
    tensor([9, 1])
    """
    present, available = labels.unique(return_counts=True)
    counts = apportion(available, size)
    while size >= len(present) and bool((counts == 0).any()):
        counts[counts.argmax()] -= 1
        counts[counts.argmin()] += 1
    chosen = []
    for label, count in zip(present.tolist(), counts.tolist(), strict=True):
        members = (labels == label).nonzero().flatten()
        chosen.append(members[torch.randperm(len(members), generator=generator)[:count]])
    return torch.cat(chosen).sort().values


def complement(index: Tensor, length: int) -> Tensor:
    """The positions below ``length`` that are not in ``index``."""
    mask = torch.ones(length, dtype=torch.bool)
    mask[index] = False
    return mask.nonzero().flatten()


def held_out(images: ImageSet, generator: torch.Generator) -> tuple[ImageSet, ImageSet]:
    """Stratified 80/20 split into (train, test). Copies of a training image go to the training side as well."""
    length = len(images)
    train = stratified_sample(images.labels, max(1, length - max(1, round(HELD_OUT * length))), generator)
    test = complement(train, length)
    hashes = image_hashes(images.images)
    known = {hashes[i] for i in train.tolist()}
    copies = torch.tensor([hashes[i] in known for i in test.tolist()], dtype=torch.bool)
    train = torch.cat([train, test[copies]]).sort().values
    return images.subset(train), images.subset(test[~copies])


def unseen(train: ImageSet, test: ImageSet) -> Tensor:
    """Mask (N of ``train``): True where the image is not, pixel for pixel, in the test set too."""
    known = set(image_hashes(test.images))
    return torch.tensor([h not in known for h in image_hashes(train.images)], dtype=torch.bool)


def add_label_noise(
    images: ImageSet, classes: int, rate: float, kind: NoiseType, generator: torch.Generator
) -> tuple[ImageSet, int]:
    """Give a share ``rate`` of the images a wrong label; returns the set and how many labels changed.

    ``symmetric``: any other class, all equally likely. ``pair``: the next class, the last one wrapping around.
    """
    flips = round(rate * len(images)) if classes > 1 else 0
    where = torch.randperm(len(images), generator=generator)[:flips]
    steps = torch.randint(1, max(2, classes), (flips,), generator=generator)
    if kind == "pair":
        steps = torch.ones_like(steps)
    labels = images.labels.clone()
    labels[where] = (labels[where] + steps) % classes
    return replace(images, labels=labels), flips
