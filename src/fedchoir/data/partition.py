"""Partitions of one data set over clients: labels (N) → positions per client, every sample exactly once.

A draw that leaves a client with too few samples is repaired by moving samples from the largest clients, with a note.
Nothing is drawn again, so it always terminates.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedchoir.data.splits import apportion
from fedchoir.utils.errors import UsageError
from fedchoir.utils.rng import derive

MIN_SAMPLES = 10  # of a client, in large data sets


@dataclass(frozen=True)
class Partition:
    """Positions (int64, sorted) of every client's samples, notes about repairs, and names if a file gives them."""

    positions: tuple[Tensor, ...]
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] | None = None


def min_samples(samples: int, clients: int) -> int:
    """The smallest allowed number of samples per client: 10, or half an equal share if less, but two where possible.

    >>> min_samples(50000, 10), min_samples(400, 200), min_samples(300, 200)
    (10, 2, 1)
    """
    share = samples // clients
    return max(min(2, share), min(MIN_SAMPLES, share // 2))


def dirichlet(
    labels: Tensor, clients: int, beta: float, seed: int, least: int | None = None, *, cap: bool = False
) -> Partition:
    """Split every class in proportions drawn from Dirichlet(β, …, β); small β means skewed.

    ``cap``: a client that has an equal share of all samples (N / clients) gets nothing of further classes, as in
    NIID-Bench (Li et al., ICDE 2022) and the codes that are built on it; sizes then differ less.
    """
    rng = _rng(seed, "dirichlet", labels, clients)
    chunks: list[list[np.ndarray]] = [[] for _ in range(clients)]
    limit = len(labels) / clients if cap else math.inf
    for positions in _by_class(labels, rng):
        proportions = rng.dirichlet(np.full(clients, beta))
        full = np.array([sum(map(len, c)) >= limit for c in chunks])
        if full.any():
            proportions[full] = 0
            proportions /= max(proportions.sum(), np.finfo(float).tiny)
        if not np.isclose(proportions.sum(), 1):  # β so small that every draw underflowed
            others = np.flatnonzero(~full)
            proportions = np.eye(clients)[others[rng.integers(len(others))]]
        cuts = np.rint(np.cumsum(proportions)[:-1] * len(positions)).astype(np.int64)
        for client, chunk in zip(chunks, np.split(positions, cuts), strict=True):
            client.append(chunk)
    return _repaired([np.concatenate(c) for c in chunks], rng, least)


def shards(labels: Tensor, clients: int, shards_per_client: int, seed: int, least: int | None = None) -> Partition:
    """Cut the samples, sorted by class, into equal shards and assign them to clients at random."""
    rng = _rng(seed, "shards", labels, clients)
    count = clients * shards_per_client
    if count > len(labels):
        raise UsageError(f"shards_per_client: {clients} clients × {shards_per_client} needs {count} samples or more")
    cut = np.array_split(np.concatenate(_by_class(labels, rng)), count)
    order = rng.permutation(count).reshape(clients, shards_per_client)
    return _repaired([np.concatenate([cut[i] for i in row]) for row in order], rng, least)


def classes_per_client(labels: Tensor, clients: int, classes: int, seed: int, least: int | None = None) -> Partition:
    """Every client has ``classes`` classes; the clients of a class divide its samples evenly."""
    rng = _rng(seed, "classes", labels, clients)
    by_class = _by_class(labels, rng)
    count = len(by_class)
    if not count <= clients * classes or classes > count:
        raise UsageError(
            f"classes_per_client: {classes} with {clients} clients and {count} classes; "
            f"wanted {-(-count // clients)} to {count}, so that every sample has a client"
        )
    holders: list[list[int]] = [[] for _ in by_class]
    for client in rng.permutation(clients):
        rank = np.lexsort(np.stack([rng.random(count), [len(h) for h in holders]]))  # classes with fewest clients first
        for label in rank[:classes]:
            holders[label].append(int(client))
    chunks: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for positions, owners in zip(by_class, holders, strict=True):
        for owner, chunk in zip(owners, np.array_split(positions, len(owners)), strict=True):
            chunks[owner].append(chunk)
    return _repaired([np.concatenate(c) for c in chunks], rng, least)


def iid(labels: Tensor, clients: int, seed: int, least: int | None = None) -> Partition:
    """Equal sizes and equal class distributions, up to one sample."""
    rng = _rng(seed, "iid", labels, clients)
    by_class = np.concatenate(_by_class(labels, rng))
    return _repaired([by_class[k::clients] for k in range(clients)], rng, least)


def lognormal(
    labels: Tensor, clients: int, sigma: float, seed: int, name: str = "", least: int | None = None
) -> Partition:
    """Unequal sizes, in proportion to draws from LogNormal(0, σ²), with equal class distributions.

    FedLab (Zeng et al., JMLR 2023) and the released code of FedDyn draw sizes in this way. ``name``: domains of one
    scenario have different draws.
    """
    rng = _rng(seed, f"lognormal {name}", labels, clients)
    draws = sigma * rng.standard_normal(clients)
    sizes = apportion(torch.from_numpy(np.exp(draws - draws.max())), len(labels))
    by_class = _by_class(labels, rng)
    places = np.concatenate([(np.arange(len(p)) + rng.random(len(p))) / len(p) for p in by_class])
    mixed = np.concatenate(by_class)[np.argsort(places)]  # in any stretch of it, classes are in proportion
    return _repaired(np.split(mixed, np.cumsum(sizes.numpy())[:-1]), rng, least)


def from_file(path: Path, samples: int) -> Partition:
    """Read ``[[positions], …]`` or ``{"client": [positions], …}`` from JSON; positions count from 0."""
    try:
        content = json.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UsageError(f"partition_file {path}: not a readable JSON file ({error})") from error
    names = tuple(content) if isinstance(content, dict) else None
    lists = list(content.values()) if isinstance(content, dict) else content
    if not isinstance(lists, list) or not lists or not all(isinstance(entry, list) and entry for entry in lists):
        raise UsageError(f"partition_file {path}: wanted a list of lists of positions, or {{client: positions}}")
    owner: dict[int, str] = {}
    for i, positions in enumerate(lists):
        name = names[i] if names else f"client {i}"
        for position in positions:
            if type(position) is not int or not 0 <= position < samples:
                raise UsageError(f"partition_file {path}: {name}: {position!r} is not a position below {samples}")
            if position in owner:
                raise UsageError(f"partition_file {path}: sample {position} given to {owner[position]} and {name}")
            owner[position] = name
    unused = samples - len(owner)
    notes = (f"partition_file leaves out {unused} of {samples} training samples",) if unused else ()
    return Partition(tuple(torch.tensor(sorted(positions)) for positions in lists), notes, names)


def _rng(seed: int, kind: str, labels: Tensor, clients: int) -> np.random.Generator:
    if clients > len(labels):
        raise UsageError(f"clients: {clients} clients but only {len(labels)} training samples")
    return np.random.default_rng(derive(seed, "partition", kind))


def _by_class(labels: Tensor, rng: np.random.Generator) -> list[np.ndarray]:
    """The shuffled positions of every class that occurs."""
    array = labels.cpu().numpy()
    return [rng.permutation(np.flatnonzero(array == label)) for label in np.unique(array)]


def _repaired(positions: Sequence[np.ndarray], rng: np.random.Generator, least: int | None) -> Partition:
    """Move single samples from the largest client to those below ``least``."""
    total, clients = sum(map(len, positions)), len(positions)
    least = min_samples(total, clients) if least is None else min(least, total // clients)
    queues = [list(rng.permutation(p)) for p in positions]
    sizes = np.array([len(queue) for queue in queues])
    small = np.flatnonzero(sizes < least)
    moved = 0
    for client in small:
        while sizes[client] < least:
            donor = int(sizes.argmax())
            queues[client].append(queues[donor].pop())
            sizes[donor] -= 1
            sizes[client] += 1
            moved += 1
    notes: tuple[str, ...] = ()
    if moved:
        notes = (f"{len(small)} of {clients} clients drew fewer than {least} samples: {moved} moved to them",)
    return Partition(tuple(torch.tensor(sorted(map(int, queue))) for queue in queues), notes)
