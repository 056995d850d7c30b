"""Dealing one data set out to clients: labels (N) in, positions per client out, every image exactly once.

A draw that leaves a client with too few images is repaired by moving images over from the largest clients, and says
so; nothing is drawn again, so it always ends.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedchoir.utils.errors import UsageError
from fedchoir.utils.rng import derive

ENOUGH = 10  # images that a client should have where there are plenty


@dataclass(frozen=True)
class Partition:
    """Positions (int64, sorted) of every client's images; notes about repairs; names where a file gives them."""

    parts: tuple[Tensor, ...]
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] | None = None


def least_images(images: int, clients: int) -> int:
    """How many images no client may go below: 10, or half an equal share if that is less, but two where possible.

    >>> least_images(50000, 10), least_images(400, 200), least_images(300, 200)
    (10, 2, 1)
    """
    share = images // clients
    return max(min(2, share), min(ENOUGH, share // 2))


def dirichlet(labels: Tensor, clients: int, beta: float, seed: int, least: int | None = None) -> Partition:
    """Every class is dealt out in proportions drawn from Dirichlet(β, …, β); small β means skewed."""
    rng = _rng(seed, "dirichlet", labels, clients)
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for members in _by_class(labels, rng):
        proportions = rng.dirichlet(np.full(clients, beta))
        if not np.isfinite(proportions).all():  # β so small that every draw underflowed: one client takes all
            proportions = np.eye(clients)[rng.integers(clients)]
        cuts = np.rint(np.cumsum(proportions)[:-1] * len(members)).astype(np.int64)
        for part, chunk in zip(parts, np.split(members, cuts), strict=True):
            part.append(chunk)
    return _repaired([np.concatenate(p) for p in parts], rng, least)


def shards(labels: Tensor, clients: int, shards_per_client: int, seed: int, least: int | None = None) -> Partition:
    """Images sorted by class are cut into equal shards; every client gets some of them at random."""
    rng = _rng(seed, "shards", labels, clients)
    count = clients * shards_per_client
    if count > len(labels):
        raise UsageError(f"shards_per_client: {clients} clients × {shards_per_client} needs {count} images or more")
    cut = np.array_split(np.concatenate(_by_class(labels, rng)), count)
    order = rng.permutation(count).reshape(clients, shards_per_client)
    return _repaired([np.concatenate([cut[i] for i in row]) for row in order], rng, least)


def classes_per_client(labels: Tensor, clients: int, classes: int, seed: int, least: int | None = None) -> Partition:
    """Every client holds ``classes`` classes; clients that share a class divide its images evenly."""
    rng = _rng(seed, "classes", labels, clients)
    members = _by_class(labels, rng)
    if not len(members) <= clients * classes or classes > len(members):
        low = -(-len(members) // clients)
        raise UsageError(
            f"classes_per_client: {classes} with {clients} clients and {len(members)} classes; "
            f"wanted {low} to {len(members)}, so that every image has an owner"
        )
    holders: list[list[int]] = [[] for _ in members]
    for client in rng.permutation(clients):
        rank = np.lexsort(np.stack([rng.random(len(members)), [len(h) for h in holders]]))  # least-held classes first
        for label in rank[:classes]:
            holders[label].append(int(client))
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for images, owners in zip(members, holders, strict=True):
        for owner, chunk in zip(owners, np.array_split(images, len(owners)), strict=True):
            parts[owner].append(chunk)
    return _repaired([np.concatenate(p) for p in parts], rng, least)


def iid(labels: Tensor, clients: int, seed: int, least: int | None = None) -> Partition:
    """Equal shares with the same mix of classes (to within an image)."""
    rng = _rng(seed, "iid", labels, clients)
    dealt = np.concatenate(_by_class(labels, rng))  # sorted by class: every k-th image goes to client k
    return _repaired([dealt[k::clients] for k in range(clients)], rng, least)


def from_file(path: Path, images: int) -> Partition:
    """Read ``[[positions], …]`` or ``{"client": [positions], …}`` from JSON; positions count from 0."""
    try:
        content = json.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UsageError(f"partition_file {path}: not a readable JSON file ({error})") from error
    names = tuple(content) if isinstance(content, dict) else None
    lists = list(content.values()) if isinstance(content, dict) else content
    if not isinstance(lists, list) or not lists or not all(isinstance(part, list) and part for part in lists):
        raise UsageError(f"partition_file {path}: wanted a list of lists of positions, or {{client: positions}}")
    owner: dict[int, str] = {}
    for i, part in enumerate(lists):
        name = names[i] if names else f"client {i}"
        for position in part:
            if type(position) is not int or not 0 <= position < images:
                raise UsageError(f"partition_file {path}: {name}: {position!r} is not a position below {images}")
            if position in owner:
                raise UsageError(f"partition_file {path}: image {position} given to {owner[position]} and {name}")
            owner[position] = name
    left = images - len(owner)
    notes = (f"partition_file leaves out {left} of {images} training images",) if left else ()
    return Partition(tuple(torch.tensor(sorted(part)) for part in lists), notes, names)


def _rng(seed: int, kind: str, labels: Tensor, clients: int) -> np.random.Generator:
    if clients > len(labels):
        raise UsageError(f"clients: {clients} clients but only {len(labels)} training images")
    return np.random.default_rng(derive(seed, "partition", kind))


def _by_class(labels: Tensor, rng: np.random.Generator) -> list[np.ndarray]:
    """Positions of every class that occurs, shuffled."""
    array = labels.cpu().numpy()
    return [rng.permutation(np.flatnonzero(array == label)) for label in np.unique(array)]


def _repaired(parts: Sequence[np.ndarray], rng: np.random.Generator, least: int | None) -> Partition:
    """Move single images from the largest client to those below ``least``."""
    total = sum(map(len, parts))
    least = least_images(total, len(parts)) if least is None else min(least, total // len(parts))
    queues = [list(rng.permutation(part)) for part in parts]
    sizes = np.array([len(queue) for queue in queues])
    starved = np.flatnonzero(sizes < least)
    moved = 0
    for client in starved:
        while sizes[client] < least:
            donor = int(sizes.argmax())
            queues[client].append(queues[donor].pop())
            sizes[donor] -= 1
            sizes[client] += 1
            moved += 1
    notes: tuple[str, ...] = ()
    if moved:
        notes = (f"{len(starved)} of {len(parts)} clients drew fewer than {least} images: {moved} moved to them",)
    return Partition(tuple(torch.tensor(sorted(map(int, queue))) for queue in queues), notes)
