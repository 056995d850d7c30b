"""What a round is made of: steps that clients take alone, and exchanges whose payloads the server aggregates.

A method's ``round`` is a generator. ``yield Step(...)`` runs a function at every client; ``aggregate = yield
Exchange(...)`` collects a payload from every client and returns the aggregate. Steps travel with the next exchange as
one message. `perform` runs one action at one client, with the same code in every engine.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedchoir.core.activation_checkpointing import release_memory
from fedchoir.core.aggregation import AggregatorFactory, mean
from fedchoir.core.robust import corrupted
from fedchoir.core.wire import compressed_reply
from fedchoir.payload import Payload, check, declared_by
from fedchoir.utils.rng import derive, reseed

if TYPE_CHECKING:
    from fedchoir.core.client import Client


@dataclass(frozen=True)
class PublicBatch:
    """The name of a public batch, the same at every site. The samples themselves are never sent."""

    round: int
    epoch: int
    index: int
    start: int
    size: int

    @property
    def dims(self) -> dict[str, int]:
        return {"B": self.size}


Received = Payload | dict[int, Payload] | list[Payload] | list[dict[int, Payload]] | None
"""What a step delivers: one payload for all clients or one for each; or a list with one of these per public batch."""


@dataclass(frozen=True)
class Step:
    """Every client runs ``function(client[, batch][, received])``, once or once per batch."""

    function: Callable[..., None]
    batches: tuple[PublicBatch, ...] = ()
    received: Received = None


@dataclass(frozen=True)
class Exchange:
    """Every client sends ``function(client[, batch][, received])``; the yield returns the aggregate.

    ``fault`` returns why a payload of the right shape cannot be used (empty where it can): its client is then left out.
    """

    function: Callable[..., Payload]
    batches: tuple[PublicBatch, ...] = ()
    aggregator: AggregatorFactory = mean
    received: Received = None
    dims: Mapping[str, int] = field(default_factory=dict)
    fault: Callable[[Payload], str] | None = None


Action = Step | Exchange
STREAMS = {
    "local_update": "practise",
    "public_update": "listen",
    "public_update_alone": "listen_alone",
    "share": "speak",
}
"""Names of random streams that differ from the functions' names. They are frozen: draws are derived from them, and
another name would change every kept number."""
Script = Generator[Action, Any, None]


@dataclass(frozen=True)
class Round:
    """The facts of a round that a method may use."""

    index: int
    rounds: int
    clients: tuple[int, ...]
    public_size: int = 0
    public_batch: int = 512
    public_epochs: int = 1
    drop_last: bool = False
    sync: str = "batch"

    def public_batches(self) -> Iterator[tuple[PublicBatch, ...]]:
        """Groups of public batches with one exchange each: single batches (sync = batch) or a whole pass (epoch)."""
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


def received_by(received: Received, client: int, number: int) -> Payload | None:
    """The payload that one client receives for one batch of a step."""
    if received is None or isinstance(received, Payload):
        return received
    if isinstance(received, dict):
        return received.get(client)
    return received_by(received[number], client, 0)


def received_bytes(received: Received, client: int) -> int:
    """Bytes that a step delivers to one client."""
    if received is None:
        return 0
    if isinstance(received, Payload):
        return received.nbytes
    if isinstance(received, dict):
        return received[client].nbytes if client in received else 0
    return sum(received_bytes(part, client) for part in received)


def stream_of(function: Callable[..., Any]) -> str:
    """The name of an action's random stream: the method's own, or the common one, or the function's name."""
    name = function.__name__
    return getattr(getattr(function, "__self__", None), "streams", {}).get(name) or STREAMS.get(name, name)


def perform(client: Client, action: Action) -> list[Payload]:
    """Run an action at a client. The payloads of an exchange are checked before they leave."""
    client.phase = stream_of(action.function)
    payloads: list[Payload] = []
    for number, batch in enumerate(action.batches or (None,)):
        _seed(client, batch)
        arguments = [client, *([batch] if batch else []), *_received(action, client, number)]
        payload = action.function(*arguments)
        if payload is not None:
            payloads.append(payload)
    if client.device.type == "cpu":
        release_memory()
    if isinstance(action, Exchange):
        _check_outgoing(client, action, payloads)
        if client.hostile:
            payloads = corrupted(payloads, client.settings.attack, client.generator("attack"))
        payloads = compressed_reply(client, action, payloads)
    return payloads


def _received(action: Action, client: Client, number: int) -> list[Payload | None]:
    if action.received is None:
        return []
    received = received_by(action.received, client.index, number)
    return [received.to(client.device) if received is not None else None]


def _seed(client: Client, batch: PublicBatch | None) -> None:
    # Dropout and similar layers draw from torch's global generator.
    where = (batch.epoch, batch.index) if batch else ()
    reseed(derive(client.seed, "draw", client.index, client.round, client.phase, *where))


def _check_outgoing(client: Client, action: Exchange, payloads: list[Payload]) -> None:
    """Names, shapes and dtypes: nothing leaves a client that was not declared. (A violation is a bug: it raises.)"""
    declared = declared_by(action.function)
    for number, payload in enumerate(payloads):
        local = action.batches[number].dims if action.batches else {}
        dims = {"C": client.model.num_classes, **action.dims, **local}
        check(payload, declared, dims, client.model.state_dict(), modules=client.modules.state_dict(), finite=False)
