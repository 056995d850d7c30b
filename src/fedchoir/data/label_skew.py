"""Label-skew scenarios: one data set partitioned over clients."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedchoir.data import partition
from fedchoir.data.options import DataOptions
from fedchoir.data.splits import apportion, unseen
from fedchoir.utils.errors import UsageError
from fedchoir.utils.rng import generator

if TYPE_CHECKING:
    from fedchoir.data.samples import Samples


def draw_partition(labels: Tensor, clients: int, seed: int, options: DataOptions) -> partition.Partition:
    """The partition that the options name."""
    if options.partition == "dirichlet":
        return partition.dirichlet(labels, clients, options.beta, seed, cap=options.dirichlet_cap)
    if options.partition == "shards":
        return partition.shards(labels, clients, options.shards_per_client, seed)
    if options.partition == "classes":
        return partition.classes_per_client(labels, clients, options.classes_per_client, seed)
    if options.size_skew:
        return partition.lognormal(labels, clients, options.size_skew, seed)
    return partition.iid(labels, clients, seed)


def partition_from_file(train: Samples, allowed: Samples, options: DataOptions) -> partition.Partition:
    """The file's partition of ``train`` without samples that are not in ``allowed`` (copies of test samples)."""
    assert options.partition_file is not None
    if options.private is not None:
        raise UsageError("private: a partition_file already defines the samples of every client; give one of the two")
    drawn = partition.from_file(options.partition_file, len(train))
    if options.clients not in (None, len(drawn.positions)):
        raise UsageError(f"clients: {options.clients} given, but partition_file has {len(drawn.positions)}")
    if len(allowed) == len(train):
        return drawn
    keep = ~unseen(train, allowed)
    return replace(drawn, positions=tuple(p[keep[p]] for p in drawn.positions))


def own_tests(test: Samples, labels: list[Tensor], classes: int, seed: int) -> list[Samples]:
    """Partition the test set like the training set: each client gets its share of every class.

    A client whose shares all round to 0 gets one sample of its most frequent class, or any sample if the test set lacks
    that class.
    """
    counts = torch.stack([label.bincount(minlength=classes) for label in labels])  # K×C
    chunks: list[list[Tensor]] = [[] for _ in labels]
    random = generator(seed, "own tests")
    for label in range(classes):
        positions = (test.labels == label).nonzero().flatten()
        positions = positions[torch.randperm(len(positions), generator=random)]
        if not len(positions) or not int(counts[:, label].sum()):
            continue
        sizes = apportion(counts[:, label], len(positions)).tolist()
        for client, chunk in zip(chunks, positions.split(sizes), strict=True):
            client.append(chunk)
    tests = []
    for client, count in zip(chunks, counts, strict=True):
        index = torch.cat(client) if client else torch.empty(0, dtype=torch.int64)
        if not len(index):
            likely = (test.labels == count.argmax()).nonzero().flatten()
            index = likely[:1] if len(likely) else torch.zeros(1, dtype=torch.int64)
        tests.append(test.subset(index.sort().values))
    return tests
