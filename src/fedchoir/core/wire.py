"""Compression of what crosses the wire, in both directions, with the errors that each sender makes up for later.

Clients keep theirs in their memory, the server keeps its own: both are part of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedchoir.compression import entropy
from fedchoir.compression.chain import Compression, parse
from fedchoir.compression.symmetric import is_symmetric
from fedchoir.compression.wire import Traits, compressed
from fedchoir.payload import Payload

if TYPE_CHECKING:
    from fedchoir.core.actions import Action
    from fedchoir.core.client import Client

MEMORY = "compression"  # name of the errors in a client's memory


def check_compression(text: str) -> Compression:
    """Read the option ``compress``; `UsageError` where it is wrong or its library is missing."""
    chains = parse(text)
    if any(chain is not None and chain.zstd for chain in (chains.up, chains.down)):
        entropy.check_available()
    return chains


def uplink_traits(function: Callable[..., Any], *, repeats: bool) -> Callable[[str, Tensor], Traits]:
    """What a method declares about the entries that a function sends (`Method.symmetric`, `Method.changes`)."""
    method = getattr(function, "__self__", None)
    halves: frozenset[str] = getattr(method, "symmetric", frozenset())
    changes: frozenset[str] = getattr(method, "changes", frozenset())

    def traits(name: str, tensor: Tensor) -> Traits:
        root = name.partition("/")[0]
        return Traits(name in halves, root == name or root in changes, repeats, root in changes)

    return traits


def compressed_reply(client: Client, action: Action, payloads: Sequence[Payload]) -> list[Payload]:
    """A client's payloads as the server will see them."""
    chain = client.compression.up
    if chain is None:
        return list(payloads)
    known = client.memory.get(MEMORY, {})
    residuals: dict[str, Tensor] = dict(known) if isinstance(known, dict) else {}
    traits = uplink_traits(action.function, repeats=not action.batches)
    key = f"{action.function.__name__}/"
    sent = [compressed(payload, chain, traits, residuals, key) for payload in payloads]
    if residuals:
        client.memory[MEMORY] = residuals
    return sent


def _downlink_traits(repeats: bool) -> Callable[[str, Tensor], Traits]:
    return lambda name, tensor: Traits(is_symmetric(tensor), "/" not in name, repeats)


class Downlink:
    """Compresses what the server sends. A payload for all clients is compressed once."""

    def __init__(self, compress: str) -> None:
        self.chain = check_compression(compress).down
        self.residuals: dict[str, Tensor] = {}

    def compressed(self, action: Action) -> Action:
        """The action with what its clients will see."""
        if self.chain is None or action.received is None:
            return action
        return replace(action, received=self._received(action, action.received, ""))

    def _received(self, action: Action, received: Any, receiver: str) -> Any:
        if isinstance(received, Payload):
            assert self.chain is not None
            key = f"{action.function.__name__}/{receiver}/"
            return compressed(received, self.chain, _downlink_traits(not action.batches), self.residuals, key)
        if isinstance(received, Mapping):
            shared = len({id(payload) for payload in received.values()}) == 1
            made: dict[int, Payload] = {}  # by the identity of the payload
            for client, payload in received.items():
                if id(payload) not in made:
                    made[id(payload)] = self._received(action, payload, "" if shared else str(client))
            return {client: made[id(payload)] for client, payload in received.items()}
        return [self._received(action, item, receiver) for item in received]
