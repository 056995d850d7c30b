"""A client as it starts: everything about it follows from the settings, the seed and its number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedchoir.core.activation_checkpointing import limit_activations
from fedchoir.core.batches import PublicView
from fedchoir.core.client import Client
from fedchoir.core.robust import flipped_labels
from fedchoir.data.scenario import ClientData
from fedchoir.methods.base import Method
from fedchoir.models import VisionModel, build
from fedchoir.core.private_training import PrivateTrainer
from fedchoir.privacy.dp import without_batchnorm
from fedchoir.utils.rng import seeded


@dataclass(frozen=True)
class ClientModules:
    """What a client computes with: its model, and the auxiliary modules that its method adds."""

    model: VisionModel
    auxiliary: dict[str, nn.Module]

    @torch.no_grad()
    def start_like(self, other: ClientModules, *, auxiliary_only: bool = False) -> None:
        """Take over all weights and buffers; with ``auxiliary_only`` not the model's."""
        pairs: list[tuple[nn.Module, nn.Module]] = [
            (self.auxiliary[name], other.auxiliary[name]) for name in self.auxiliary
        ]
        if not auxiliary_only:
            pairs.append((self.model, other.model))
        for mine, theirs in pairs:
            for own, new in zip(_tensors(mine), _tensors(theirs), strict=True):
                own.copy_(new)


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def new_modules(method: Method, index: int) -> ClientModules:
    """A client's modules, drawn from the seed and its number, or the seed alone where all are alike."""
    task = method.spec
    with seeded(task.seed, "model", "shared" if task.homogeneous else index):
        model = build(task.clients[index].model, len(task.classes), image_size=task.image_size)
        if method.params.dp_noise:
            without_batchnorm(model)
        return ClientModules(model, method.extra_modules(model))


def new_client(
    method: Method,
    index: int,
    data: ClientData,
    view: PublicView | None,
    *,
    device: torch.device,
    precision: str,
    modules: ClientModules | None = None,
) -> Client:
    """A client as it starts, or with the modules given."""
    task, params, train = method.spec, method.params, data.train
    if modules is None:
        modules = new_modules(method, index)
        limit_activation_memory(
            modules, method, train.images.shape[-1], len(train), public=view is not None, device=device
        )
    hostile = params.attack != "none" and index >= len(task.clients) - params.attackers
    if hostile and params.attack == "label_flip":
        train = replace(train, labels=flipped_labels(train.labels, len(task.classes)))
    client = Client(
        index,
        data.name,
        modules.model,
        train,
        settings=params,
        seed=task.seed,
        rounds=task.rounds,
        public=view,
        modules=modules.auxiliary,
        device=device,
        precision=precision,
    )
    client.hostile = hostile
    if params.dp_noise:
        client.trainer = PrivateTrainer(client)
    return client


def limit_activation_memory(
    modules: ClientModules, method: Method, image_size: int, images: int, *, public: bool, device: torch.device
) -> None:
    """Let the model's backward pass keep within ``keep_gb`` for whatever batch a client with so many images has."""
    params = method.params
    if device.type == "cpu" and params.activation_budget_gb:
        largest = max(params.public_batch if public else 0, min(params.local_batch, images))
        modules.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        limit_activations(modules.model, image_size, largest, params.activation_budget_gb * 1e9)
