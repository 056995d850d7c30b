"""The one training loop. A method says what the loss of a batch is; how steps are run is decided here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from fedchoir.federation.client import Client


@dataclass(frozen=True)
class Batch:
    """Images, their labels (private data only) and whatever else a loss needs for each of them, by name."""

    images: Tensor
    labels: Tensor
    targets: Mapping[str, Tensor] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        return self.targets[name]

    def __len__(self) -> int:
        return len(self.images)


Loss = Callable[["Client", Batch], Tensor]


class Trainer(Protocol):
    """How optimiser steps are run: plainly, or captured and replayed."""

    def train(self, client: Client, optimizer: torch.optim.Optimizer, loss: Loss, batches: Iterable[Batch]) -> Tensor:
        """One optimiser step for each batch; the mean loss, still on the device."""


class EagerTrainer:
    """Forward, backward, step. Nothing is read back from the device before the last batch."""

    def train(self, client: Client, optimizer: torch.optim.Optimizer, loss: Loss, batches: Iterable[Batch]) -> Tensor:
        total = torch.zeros((), device=client.device)
        count = 0
        for batch in batches:
            optimizer.zero_grad(set_to_none=True)
            value = loss(client, batch)
            value.backward()
            optimizer.step()
            total += value.detach()
            count += 1
        return total / max(count, 1)
