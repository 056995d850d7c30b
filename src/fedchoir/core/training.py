"""The training loop. A method defines the loss of a batch; a trainer runs the optimiser steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

if TYPE_CHECKING:
    from fedchoir.core.client import Client


@dataclass(frozen=True)
class Batch:
    """Samples, their labels (private data only) and named targets."""

    inputs: Tensor
    labels: Tensor
    targets: Mapping[str, Tensor] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        return self.targets[name]

    def __len__(self) -> int:
        return len(self.inputs)


Loss = Callable[["Client", Batch], Tensor]


class Trainer(Protocol):
    """How optimiser steps run: eagerly, or captured and replayed as CUDA graphs."""

    notes: list[str]
    """For the result of the run."""

    def optimizer(
        self, client: Client, name: str, algorithm: str, *, lr: float, weight_decay: float, momentum: float
    ) -> Optimizer:
        """A new optimiser over the client's parameters; ``name`` is the phase, ``public`` or ``local``."""

    def train(self, client: Client, optimizer: Optimizer, loss: Loss, batches: Iterable[Batch]) -> Tensor:
        """One optimiser step for each batch; the mean loss, still on the device."""

    def forward(self, client: Client, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Features and logits without gradients."""

    def accelerated(self, function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """The same function of a frozen model, captured where that is faster."""

    def release(self, client: Client) -> None:
        """Drop every reference to the client's tensors: its state moves to the cache."""


class WrappedTrainer:
    """A `Trainer` that leaves everything to another one; a subclass changes a part of it."""

    def __init__(self, inner: Trainer) -> None:
        self.inner = inner
        self.notes = inner.notes

    def optimizer(
        self, client: Client, name: str, algorithm: str, *, lr: float, weight_decay: float, momentum: float
    ) -> Optimizer:
        return self.inner.optimizer(client, name, algorithm, lr=lr, weight_decay=weight_decay, momentum=momentum)

    def train(self, client: Client, optimizer: Optimizer, loss: Loss, batches: Iterable[Batch]) -> Tensor:
        return self.inner.train(client, optimizer, loss, batches)

    def forward(self, client: Client, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner.forward(client, inputs)

    def accelerated(self, function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return self.inner.accelerated(function)

    def release(self, client: Client) -> None:
        self.inner.release(client)


class EagerTrainer:
    """Forward, backward, step. Nothing is read back from the device before the last batch."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def optimizer(
        self, client: Client, name: str, algorithm: str, *, lr: float, weight_decay: float, momentum: float
    ) -> Optimizer:
        return new_optimizer(algorithm, client.parameter_groups(), lr=lr, weight_decay=weight_decay, momentum=momentum)

    def train(self, client: Client, optimizer: Optimizer, loss: Loss, batches: Iterable[Batch]) -> Tensor:
        total = torch.zeros((), device=client.device)
        count = 0
        for batch in batches:
            optimizer.zero_grad(set_to_none=True)
            value = loss(client, batch)
            value.backward()
            optimizer.step()
            total += value.detach()
            count += 1
        optimizer.zero_grad(set_to_none=True)  # the last gradients would double a client's memory
        return total / max(count, 1)

    def forward(self, client: Client, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return client.features_and_logits(inputs)

    def accelerated(self, function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return function

    def release(self, client: Client) -> None:
        pass


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that share a learning rate: ``lr_factor`` times that of the phase."""

    parameters: list[nn.Parameter]
    lr_factor: float = 1.0


def new_optimizer(
    algorithm: str,
    groups: Sequence[ParameterGroup],
    *,
    lr: float | Tensor,
    weight_decay: float,
    momentum: float,
    capturable: bool = False,
) -> Optimizer:
    """Adam or SGD, as one kernel over all parameters of a group."""
    parameters = [{"params": g.parameters, "lr": lr * g.lr_factor, "lr_factor": g.lr_factor} for g in groups]
    if algorithm == "sgd":
        return torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay, fused=True)
    return torch.optim.Adam(parameters, lr=lr, weight_decay=weight_decay, fused=True, capturable=capturable)
