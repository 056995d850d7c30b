"""What the server and all clients know about a federation before it starts."""

from dataclasses import dataclass
from functools import cached_property

import torch

from fedchoir.core.actions import Round
from fedchoir.core.settings import Settings
from fedchoir.models.spec import ModelSpec
from fedchoir.utils.input_spec import IMAGES_32, InputSpec
from fedchoir.utils.rng import generator


@dataclass(frozen=True)
class ClientInfo:
    """What everyone knows about one client."""

    name: str
    model: str
    train: int
    test: int
    domain: str


@dataclass(frozen=True)
class FederationSpec:
    """The clients, classes and rounds of a federation."""

    classes: tuple[str, ...]
    clients: tuple[ClientInfo, ...]
    rounds: int
    seed: int
    public_size: int = 0
    inputs: InputSpec = IMAGES_32
    top_k: int = 1
    metric: str = "accuracy"  # the headline metric
    held_out: str | None = None  # a test set of a domain that no client has
    joins: tuple[int, ...] = ()  # each client's first round, from 0; empty: all take part from the start
    compress: str = ""  # how payloads are compressed (`fedchoir.compression.chain`); empty: not at all

    @cached_property
    def homogeneous(self) -> bool:
        """Whether all clients have one architecture. They may start from different weights."""
        return len({ModelSpec.parse(name).architecture for name in {info.model for info in self.clients}}) == 1

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(info.name for info in self.clients)

    @property
    def dims(self) -> dict[str, int]:
        """Dimensions that every declaration may use."""
        return {"C": len(self.classes), "K": len(self.clients)}

    def has_joined(self, client: int, round_index: int) -> bool:
        """Whether a client may take part in a round and is evaluated after it."""
        return not self.joins or self.joins[client] <= round_index

    def newcomers(self, round_index: int) -> tuple[int, ...]:
        """The clients whose first round this is: they are set up before it."""
        if not self.joins:
            return tuple(range(len(self.clients))) if round_index == 0 else ()
        return tuple(k for k, first in enumerate(self.joins) if first == round_index)

    def participants(self, round_index: int, fraction: float) -> tuple[int, ...]:
        """The clients of a round, drawn from the seed and the round among those that have joined; at least one, in
        order."""
        everyone = range(len(self.clients))
        joined = [k for k in everyone if self.has_joined(k, round_index)] if self.joins else everyone
        count = max(1, round(fraction * len(joined)))
        if count >= len(joined):
            return tuple(joined)
        draw = generator(self.seed, "participants", round_index)
        order = torch.randperm(len(self.clients), generator=draw)
        if self.joins:
            return tuple(sorted([k for k in order.tolist() if self.has_joined(k, round_index)][:count]))
        return tuple(sorted(order[:count].tolist()))  # K may be a million

    def round(self, index: int, settings: Settings) -> Round:
        return Round(
            index=index,
            rounds=self.rounds,
            clients=self.participants(index, settings.fraction),
            public_size=self.public_size,
            public_batch=settings.public_batch,
            public_epochs=settings.public_epochs,
            drop_last=settings.public_drop_last,
            sync=settings.sync,
        )
