"""Builds a client in its initial state, which follows from the settings, the seed and the client's index."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import nn

from fedchoir.compression.chain import parse
from fedchoir.core.activation_checkpointing import limit_activations
from fedchoir.core.batches import PublicView
from fedchoir.core.class_weights import balanced_weights
from fedchoir.core.client import Client
from fedchoir.core.private_training import PrivateTrainer
from fedchoir.core.robust import flipped_labels
from fedchoir.data.scenario import ClientData
from fedchoir.methods.base import Method
from fedchoir.models import Model, laid_out
from fedchoir.privacy.dp import without_batchnorm
from fedchoir.utils.rng import seeded


@dataclass(frozen=True)
class ClientModules:
    """A client's model and the auxiliary modules that its method adds."""

    model: Model
    auxiliary: dict[str, nn.Module]

    @torch.no_grad()
    def copy_from(self, other: ClientModules, *, auxiliary_only: bool = False) -> None:
        """Copy all weights and buffers; with ``auxiliary_only`` not the model's."""
        pairs: list[tuple[nn.Module, nn.Module]] = [(self.auxiliary[n], other.auxiliary[n]) for n in self.auxiliary]
        for mine, theirs in pairs if auxiliary_only else [*pairs, (self.model, other.model)]:
            tensors = (chain(module.parameters(), module.buffers()) for module in (mine, theirs))
            for own, new in zip(*tensors, strict=True):
                own.copy_(new)


def new_modules(method: Method, index: int, name: str | None = None) -> ClientModules:
    """A client's modules, initialized from the seed and its index, or from the seed alone under one architecture.

    ``name``: of the model, where its site knows more of it than the others (weights, a frozen trunk).
    """
    spec = method.spec
    with seeded(spec.seed, "model", "shared" if spec.homogeneous else index):
        model = method.build_model(name or spec.clients[index].model)
        if method.params.dp_noise:
            without_batchnorm(model)
            if model.head_only:
                model.train_head_only()  # the new layers are frozen, too
        return ClientModules(model, method.extra_modules(model))


def new_client(
    method: Method,
    index: int,
    data: ClientData,
    public: PublicView | None,
    *,
    device: torch.device,
    precision: str,
    modules: ClientModules | None = None,
    model: str | None = None,
) -> Client:
    """A client in its initial state, or with the modules given; ``model`` as in `new_modules`."""
    spec, params, train = method.spec, method.params, data.train
    if modules is None:
        modules = new_modules(method, index, model)
        limit_activation_memory(modules, method, data, len(train), device=device)
    source = method.received_public if method.public_set else public
    hostile = params.attack != "none" and index >= len(spec.clients) - params.attackers
    if hostile and params.attack == "label_flip":
        train = replace(train, labels=flipped_labels(train.labels, len(spec.classes)))
    client = Client(
        index, data.name, modules.model, train, settings=params, seed=spec.seed, rounds=spec.rounds, public=source,
        modules=modules.auxiliary, device=device, precision=precision,
    )  # fmt: skip
    client.hostile = hostile
    client.compression = parse(spec.compress)
    if params.class_weights == "balanced":
        client.class_weights = balanced_weights(client.class_counts())
    if params.dp_noise:
        client.trainer = PrivateTrainer(client)
    return client


def limit_activation_memory(
    modules: ClientModules, method: Method, data: ClientData, samples: int, *, device: torch.device
) -> None:
    """Keep the model's backward pass within ``activation_budget_gb`` at the largest batch of so many samples."""
    params = method.params
    if device.type == "cpu" and params.activation_budget_gb:
        largest = max(params.public_batch if method.needs_public else 0, min(params.local_batch, samples))
        limit_activations(laid_out(modules.model), method.spec.inputs, largest, params.activation_budget_gb * 1e9)
