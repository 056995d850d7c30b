"""Local training in a plain loop: the reference for methods that change the gradients of SGD."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
from tests.methods.one_client import State
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedchoir.core.client import Client

Change = Callable[[str, Tensor, Tensor], Tensor]
"""The gradient of a parameter after its correction: its name, its value, its plain gradient."""


def train(client: Client, lr: float, momentum: float, change: Change) -> tuple[State, list[State]]:
    """The parameters after local training of a copy of the client's model, and the plain gradient of every step."""
    model = deepcopy(client.model).train()
    velocity: State = {}
    gradients = []
    epochs = range(client.settings.epochs_of(client.index))
    for batch in client.private_batches.batches(epochs, {}):
        model.zero_grad()
        cross_entropy(model(batch.inputs), batch.labels).backward()
        gradients.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
        with torch.no_grad():
            for name, p in model.named_parameters():
                step = change(name, p, gradients[-1][name])
                velocity[name] = momentum * velocity.get(name, 0) + step
                p -= lr * velocity[name]
    return {n: p.detach().clone() for n, p in model.named_parameters()}, gradients
