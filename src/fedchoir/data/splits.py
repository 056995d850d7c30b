"""Sampling and splitting labelled data: stratified samples, held-out splits, leak removal, label noise."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    from fedchoir.data.samples import Samples

NoiseType = Literal["symmetric", "pair"]

HELD_OUT = 0.2


def apportion(weights: Tensor, total: int) -> Tensor:
    """Integers in proportion to ``weights`` (C) that sum to ``total``, by largest remainders.

    >>> apportion(torch.tensor([1.0, 1.0, 2.0]), 5)
    tensor([1, 1, 3])
    """
    exact = weights.double() * (total / float(weights.sum()))
    counts = exact.floor().long()
    order = torch.argsort(exact - counts, descending=True, stable=True)
    counts[order[: total - int(counts.sum())]] += 1
    return counts


def stratified_sample(labels: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Sorted positions of ``size`` of N labels, classes in proportion, every class present if ``size`` allows.

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
        positions = (labels == label).nonzero().flatten()
        chosen.append(positions[torch.randperm(len(positions), generator=generator)[:count]])
    return torch.cat(chosen).sort().values


def complement(index: Tensor, length: int) -> Tensor:
    """The positions below ``length`` that are not in ``index``, sorted."""
    mask = torch.ones(length, dtype=torch.bool)
    mask[index] = False
    return mask.nonzero().flatten()


def held_out(samples: Samples, generator: torch.Generator, share: float = HELD_OUT) -> tuple[Samples, Samples]:
    """Stratified split into (train, test). Copies of training samples are moved to the training split."""
    length = len(samples)
    train = stratified_sample(samples.labels, max(1, length - max(1, round(share * length))), generator)
    test = complement(train, length)
    if not samples.copies_are_leaks:
        return samples.subset(train), samples.subset(test).for_every_client()
    copies = ~unseen(samples.subset(test), samples.subset(train))
    train = torch.cat([train, test[copies]]).sort().values
    return samples.subset(train), samples.subset(test[~copies]).for_every_client()


def unseen(samples: Samples, others: Samples) -> Tensor:
    """Mask (N of ``samples``): True where no identical sample is in ``others``."""
    known = set(others.hashes())
    return torch.tensor([h not in known for h in samples.hashes()], dtype=torch.bool)


def add_label_noise(
    samples: Samples, classes: int, rate: float, kind: NoiseType, generator: torch.Generator
) -> tuple[Samples, int]:
    """Give a share ``rate`` of the samples a wrong label; returns the set and the number of changed labels.

    ``symmetric``: any other class, equally likely. ``pair``: the next class, cyclically.
    """
    flips = round(rate * len(samples)) if classes > 1 else 0
    where = torch.randperm(len(samples), generator=generator)[:flips]
    steps = torch.randint(1, max(2, classes), (flips,), generator=generator)
    if kind == "pair":
        steps = torch.ones_like(steps)
    labels = samples.labels.clone()
    labels[where] = (labels[where] + steps) % classes
    return replace(samples, labels=labels), flips
