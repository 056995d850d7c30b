"""Training on the server, on payloads of clients: FedGH's head and FedTGP's prototypes."""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from fedchoir.core.actions import Round
from fedchoir.methods.base import Method
from fedchoir.payload import Payload


def missed_last_round(method: Method, r: Round) -> bool:
    """Whether a client of this round did not take part in the last one, so that what it received is out of date."""
    before = method.spec.participants(r.index - 1, method.params.fraction) if r.index else ()
    return not set(r.clients) <= set(before)


def prototype_rows(payloads: Mapping[int, Payload]) -> tuple[Tensor, Tensor]:
    """The prototypes of all clients, one row for each class that a client has (N×d), and their classes (N)."""
    prototypes = torch.stack([payload["prototypes"].cpu() for payload in payloads.values()])
    owned = torch.stack([payload["owned"].cpu() for payload in payloads.values()])
    return prototypes[owned], owned.nonzero()[:, 1]


def train_on_rows(
    loss: Callable[..., Tensor],
    parameters: Iterable[Tensor],
    rows: tuple[Tensor, ...],
    *,
    epochs: int,
    batch: int,
    lr: float,
    draw: torch.Generator,
) -> None:
    """Epochs of plain SGD on ``loss(*rows)``, in batches of shuffled rows. Without rows nothing happens."""
    optimizer = torch.optim.SGD(list(parameters), lr=lr)
    with torch.enable_grad():
        for _ in range(epochs if len(rows[0]) else 0):
            for index in torch.randperm(len(rows[0]), generator=draw).split(batch):
                optimizer.zero_grad()
                loss(*(t[index] for t in rows)).backward()
                optimizer.step()
