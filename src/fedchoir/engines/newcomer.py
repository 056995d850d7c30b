"""A client as it starts: everything about it follows from the settings, the seed and its number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedchoir.data.scenarios import ClientData
from fedchoir.federation.client import Client
from fedchoir.federation.memory import economise
from fedchoir.federation.public import PublicView
from fedchoir.federation.robust import flipped
from fedchoir.methods.method import Method
from fedchoir.models import VisionModel, build
from fedchoir.privacy.dp import PrivateTrainer, without_batchnorm
from fedchoir.rng import seeded


@dataclass(frozen=True)
class Modules:
    """What a client computes with: its model, and the parts that its method adds."""

    model: VisionModel
    parts: dict[str, nn.Module]

    @torch.no_grad()
    def start_like(self, other: Modules, *, parts_alone: bool = False) -> None:
        """Take over all weights and buffers; with ``parts_alone`` not the model's."""
        pairs: list[tuple[nn.Module, nn.Module]] = [(self.parts[name], other.parts[name]) for name in self.parts]
        if not parts_alone:
            pairs.append((self.model, other.model))
        for mine, theirs in pairs:
            for own, new in zip(_tensors(mine), _tensors(theirs), strict=True):
                own.copy_(new)


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def new_modules(method: Method, index: int) -> Modules:
    """A client's modules, drawn from the seed and its number, or the seed alone where all are alike."""
    task = method.task
    with seeded(task.seed, "model", "shared" if task.homogeneous else index):
        model = build(task.clients[index].model, len(task.classes), image_size=task.image_size)
        if method.params.dp_noise:
            without_batchnorm(model)
        return Modules(model, method.extra_modules(model))


def new_client(
    method: Method,
    index: int,
    data: ClientData,
    view: PublicView | None,
    *,
    device: torch.device,
    precision: str,
    modules: Modules | None = None,
) -> Client:
    """A client as it starts, or with the modules given."""
    task, params, train = method.task, method.params, data.train
    if modules is None:
        modules = new_modules(method, index)
        thrifty(modules, method, train.images.shape[-1], len(train), public=view is not None, device=device)
    hostile = params.attack != "none" and index >= len(task.clients) - params.attackers
    if hostile and params.attack == "label_flip":
        train = replace(train, labels=flipped(train.labels, len(task.classes)))
    client = Client(
        index,
        data.name,
        modules.model,
        train,
        settings=params,
        seed=task.seed,
        rounds=task.rounds,
        public=view,
        parts=modules.parts,
        device=device,
        precision=precision,
    )
    client.hostile = hostile
    if params.dp_noise:
        client.trainer = PrivateTrainer(client)
    return client


def thrifty(
    modules: Modules, method: Method, image_size: int, images: int, *, public: bool, device: torch.device
) -> None:
    """Let the model's backward pass keep within ``keep_gb`` for whatever batch a client with so many images has."""
    params = method.params
    if device.type == "cpu" and params.keep_gb:
        largest = max(params.public_batch if public else 0, min(params.local_batch, images))
        modules.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        economise(modules.model, image_size, largest, params.keep_gb * 1e9)
