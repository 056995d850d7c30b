"""A federation of many clients on synthetic images, for the benchmarks of scale.

Every client's private set is a window into one pool of images. So the images take the same memory for any number of
clients, and only the simulator's own memory grows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedchoir import methods
from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.core.server import Server
from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.image.pixels import as_images
from fedchoir.data.scenario import ClientData, Scenario
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.experiments.checkpoints import Checkpoints
from fedchoir.utils.input_spec import InputSpec


def synthetic(count: int, size: int, classes: int = 10, seed: int = 0) -> ImageSet:
    """Noise with a bright bar whose position is the class."""
    draw = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 128, (count, 3, size, size), dtype=torch.uint8, generator=draw)
    labels = torch.randint(0, classes, (count,), generator=draw)
    for label in range(classes):
        row = label * size // classes
        images[labels == label, :, row : row + 1] += 100
    return ImageSet(images, labels)


def unnormalised(images: ImageSet) -> ImageSet:
    """The same images with pixels in [0, 1]."""
    return replace(images, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def from_npz(path: Path, size: int) -> tuple[ImageSet, ImageSet]:
    """Training pool and test set of a file with ``train_x train_y test_x test_y``."""
    with np.load(path) as file:
        parts = [
            ImageSet(as_images(file[f"{part}_x"], size), torch.from_numpy(file[f"{part}_y"]))
            for part in ("train", "test")
        ]
    return parts[0], parts[1]


def windows(pool: ImageSet, clients: int, each: int) -> Iterator[ImageSet]:
    """``each`` images for every client, views of the pool; they overlap where the pool is too small."""
    starts = np.random.default_rng(0).permutation(len(pool) - each + 1)
    if clients * each <= len(pool):
        starts = np.arange(clients) * each
    for k in range(clients):
        at = int(starts[k % len(starts)])
        yield ImageSet(pool.inputs[at : at + each], pool.labels[at : at + each], pool.mean, pool.std)


def federation(
    method: str,
    model: str,
    pool: ImageSet,
    test: ImageSet,
    *,
    clients: int,
    each: int,
    rounds: int = 100_000,
    folder: Path | None = None,
    budget: float = 2e9,
    device: str = "cpu",
    **settings: Any,
) -> Server:
    """A federation on the local engine."""
    classes = tuple(str(c) for c in range(10))
    data = tuple(ClientData(f"client-{k}", part, "global") for k, part in enumerate(windows(pool, clients, each)))
    infos = tuple(ClientInfo(d.name, model, each, len(test), "global") for d in data)
    size = pool.inputs.shape[-1]
    cls = methods.get(method)
    spec = FederationSpec(classes, infos, rounds, 0, inputs=InputSpec.image(size))
    instance = cls(cls.Params(image_size=size, lr_schedule="constant", **settings), spec)
    scenario = Scenario("synthetic", classes, data, {"global": test})
    engine = LocalEngine(
        instance, scenario, None, device=torch.device(device), budget=budget, folder=folder and folder / "state_cache"
    )
    return Server(instance, engine, ("global",), folder=folder and folder / "checkpoint")


@dataclass(frozen=True)
class Seconds:
    """Wall-clock time and CPU time of this process; the latter does not depend on what else the machine does."""

    wall: float
    cpu: float


def timed_rounds(server: Server, checkpoints: Checkpoints | None = None) -> Iterator[tuple[Seconds, dict[str, Any]]]:
    """The time of every round, and its event. A round includes its checkpoint where there is a folder. With
    ``checkpoints`` it includes what the run waits for, and the last round includes the last checkpoint."""
    rounds = server.rounds() if checkpoints is None else checkpoints.rounds()
    with checkpoints or nullcontext():
        last: tuple[Seconds, dict[str, Any]] | None = None
        while True:
            start, work = time.perf_counter(), time.process_time()
            events = next(rounds, None)
            if events is None:
                break
            if checkpoints is not None:
                checkpoints.recorded()
            elif server.folder is not None:
                server.save()
            (event,) = events
            now = Seconds(time.perf_counter() - start, time.process_time() - work), event
            if last is not None:
                yield last
            last = now
    if last is not None:
        seconds, event = last
        end = Seconds(time.perf_counter() - start, time.process_time() - work)
        yield Seconds(seconds.wall + end.wall, seconds.cpu + end.cpu), event
