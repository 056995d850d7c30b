"""What a method is made of: steps that clients take alone, and exchanges in which they speak to each other.

A method's ``round`` is a generator. ``yield Step(...)`` lets every client act; ``heard = yield Exchange(...)`` asks
every client to speak and gives back what was combined. Steps travel with the next exchange as one message.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedchoir.federation.aggregate import Combine, mean
from fedchoir.federation.payload import Payload


@dataclass(frozen=True)
class PublicBatch:
    """One batch of public images: a name for it that is the same at every site. The images never travel."""

    round: int
    epoch: int
    index: int
    start: int
    size: int

    @property
    def dims(self) -> dict[str, int]:
        return {"B": self.size}


Heard = Payload | dict[int, Payload] | list[Payload] | list[dict[int, Payload]] | None
"""What a step brings to a client: one payload for all, or one for each client; or a list with either a public batch."""


@dataclass(frozen=True)
class Step:
    """Every client calls ``act(client)``, or ``act(client, batch)`` for each batch; ``heard`` comes last."""

    act: Callable[..., None]
    batches: tuple[PublicBatch, ...] = ()
    heard: Heard = None

    @property
    def function(self) -> Callable[..., Any]:
        return self.act


@dataclass(frozen=True)
class Exchange:
    """Every client answers ``speak(client)`` (or one answer a batch); the yield returns what was combined."""

    speak: Callable[..., Payload]
    batches: tuple[PublicBatch, ...] = ()
    combine: Combine = mean
    heard: Heard = None
    dims: Mapping[str, int] = field(default_factory=dict)

    @property
    def function(self) -> Callable[..., Any]:
        return self.speak


Action = Step | Exchange
Script = Generator[Action, Any, None]


@dataclass(frozen=True)
class Round:
    """What a method is told about the round it plays."""

    index: int
    rounds: int
    clients: tuple[int, ...]
    public_size: int = 0
    public_batch: int = 512
    public_epochs: int = 1
    drop_last: bool = False
    sync: str = "batch"

    def public_batches(self) -> Iterator[tuple[PublicBatch, ...]]:
        """Groups of public batches with one exchange each: single ones (sync = batch) or a whole pass (epoch)."""
        for epoch in range(self.public_epochs):
            batches = tuple(self._epoch(epoch))
            if self.sync == "epoch":
                yield batches
            else:
                yield from ((batch,) for batch in batches)

    def _epoch(self, epoch: int) -> Iterator[PublicBatch]:
        step = min(self.public_batch, self.public_size)
        for index, start in enumerate(range(0, self.public_size, step)):
            size = min(step, self.public_size - start)
            if size == step or (size >= 2 and not self.drop_last):
                yield PublicBatch(self.index, epoch, index, start, size)


def heard_by(heard: Heard, client: int, part: int) -> Payload | None:
    """The payload that one client hears in one batch of a step."""
    if heard is None or isinstance(heard, Payload):
        return heard
    if isinstance(heard, dict):
        return heard.get(client)
    return heard_by(heard[part], client, 0)


def heard_bytes(heard: Heard, client: int) -> int:
    """Bytes that a step sends down to one client."""
    if heard is None:
        return 0
    if isinstance(heard, Payload):
        return heard.nbytes
    if isinstance(heard, dict):
        return heard[client].nbytes if client in heard else 0
    return sum(heard_bytes(part, client) for part in heard)
