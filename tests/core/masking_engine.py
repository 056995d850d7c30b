"""An engine of clients that mask given tensors, and one secure sum after the other on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from fedchoir.core.actions import Action, Exchange
from fedchoir.core.eligibility import mean_weights
from fedchoir.core.exchange import Reply, RoundStats
from fedchoir.core.secure_exchange import SecureExchange
from fedchoir.payload import Payload, sends
from fedchoir.privacy.secure_aggregation.client import SecureAggregationClient
from fedchoir.privacy.secure_aggregation.terms import SumTerms


@sends(logits="N C")
def share(client: Any) -> Payload:
    raise AssertionError("payloads come from the test")


class MaskingEngine:
    """Every client sends the tensor that it was given, masked."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors
        self.names = tuple(f"c{k}" for k in range(len(tensors)))
        self.clients = [SecureAggregationClient(k, {}) for k in range(len(tensors))]
        self.wire: list[Reply] = []
        self.requests: list[dict[int, Mapping[str, Any]]] = []
        self.disconnected: set[int] = set()
        self.mute: set[int] = set()  # they send a payload, but no shares for unmasking

    def execute(self, clients: Any, actions: Any, round_index: int, masking: Any = None) -> Iterator[Reply]:
        for k in masking:
            if k in self.disconnected:
                yield Reply(k, error="not connected")
                continue
            try:
                self.wire.append(self.masked(k, masking[k], actions[-1]))
            except ValueError as error:
                self.wire.append(Reply(k, error=str(error)))
            yield self.wire[-1]

    def masked(self, k: int, request: Mapping[str, Any], exchange: Exchange | None = None) -> Reply:
        """One client's reply to a request, computed from its own copy of the exchange and its weights."""
        aggregator = (exchange or Exchange(share)).aggregator()
        terms = SumTerms(request["exchange"], self.names, mean_weights(aggregator) or {})
        payloads, keys = self.clients[k].mask_payloads([Payload(logits=self.tensors[k])], request, terms)
        return Reply(k, payloads, keys=keys)

    def received(self, clients: Sequence[int], actions: Sequence[Action], round_index: int) -> dict[int, str]:
        return dict.fromkeys(clients, "")

    def exchange_keys(self, requests: Mapping[int, Mapping[str, Any]]) -> Iterator[Reply]:
        self.requests.append(dict(requests))
        for k, request in requests.items():
            if k in self.disconnected or (k in self.mute and request["kind"] == "unmasking_shares"):
                yield Reply(k, error="not connected")
                continue
            try:
                yield Reply(k, keys=self.clients[k].exchange_keys(request))
            except ValueError as error:
                yield Reply(k, error=str(error))

    def mean(self, *clients: int) -> torch.Tensor:
        """The plain mean over some clients, without arguments over all."""
        return torch.stack([self.tensors[k] for k in clients or range(len(self.tensors))]).mean(dim=0)


class SecureSums:
    """One server: every call runs the next sum, each in a round of its own unless the test says otherwise."""

    def __init__(self, engine: MaskingEngine, strict: bool = False, **options: Any) -> None:
        self.engine, self.round = engine, -1
        self.server = SecureExchange(engine, engine.names, "test", strict=strict, quorum=0.5, **options)

    def __call__(self, index: int | None = None, **changes: Any) -> tuple[Payload, RoundStats]:
        self.round = self.round + 1 if index is None else index
        clients = range(len(self.engine.names))
        stats, exchange = RoundStats(), Exchange(share, **changes)
        stats.messages += len(clients)
        mean = self.server.exchange(
            exchange, [exchange], clients, self.round, stats, lambda reply: "", lambda replies: replies
        )
        return mean, stats


def key_request(engine: MaskingEngine, strict: bool = False, index: int = 0) -> dict[str, Any]:
    """The description of the next sum as an honest server would send it."""
    server = SecureExchange(engine, engine.names, "test", strict=strict, quorum=0.5)
    server._last = (index, 0)
    clients = range(len(engine.names))
    server._keys.collect(clients, RoundStats())
    return server._request(clients)


def logits(count: int, rows: int = 60) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(count)
    return [torch.randn(rows, 10, generator=draw) * 3 for _ in range(count)]
