"""An engine of clients that mask given tensors, and one secure sum after the other on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from fedchoir.core.actions import Exchange
from fedchoir.core.exchange import Reply, RoundStats
from fedchoir.core.secure_exchange import SecureExchange
from fedchoir.payload import Payload, sends
from fedchoir.privacy.secure_aggregation.client import SecureAggregationClient


@sends(logits="N C")
def share(client: Any) -> Payload:
    raise AssertionError("payloads come from the test")


class MaskingEngine:
    """Every client sends the tensor that it was given, masked."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors
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
            payloads, keys = self.clients[k].mask_payloads([Payload(logits=self.tensors[k])], masking[k])
            self.wire.append(Reply(k, payloads, keys=keys))
            yield self.wire[-1]

    def exchange_keys(self, requests: Mapping[int, Mapping[str, Any]]) -> Iterator[Reply]:
        self.requests.append(dict(requests))
        for k, request in requests.items():
            lost = k in self.disconnected or (k in self.mute and request["kind"] == "unmasking_shares")
            yield Reply(k, error="not connected") if lost else Reply(k, keys=self.clients[k].exchange_keys(request))

    def mean(self, *clients: int) -> torch.Tensor:
        """The plain mean over some clients, without arguments over all."""
        return torch.stack([self.tensors[k] for k in clients or range(len(self.tensors))]).mean(dim=0)


def secure_sums(engine: MaskingEngine, strict: bool = False) -> Callable[..., tuple[Payload, RoundStats]]:
    """A function that runs the next sum of one server."""
    count = len(engine.tensors)
    server = SecureExchange(engine, [f"c{k}" for k in range(count)], "test", strict=strict, quorum=0.5)

    def run(**changes: Any) -> tuple[Payload, RoundStats]:
        stats, exchange = RoundStats(), Exchange(share, **changes)
        stats.messages += count
        mean = server.exchange(exchange, [exchange], range(count), 0, stats, lambda reply: "", lambda replies: replies)
        return mean, stats

    return run


def key_request(engine: MaskingEngine, names: list[str]) -> dict[str, Any]:
    """The description of the next sum as an honest server would send it."""
    server = SecureExchange(engine, names, "test", strict=False, quorum=0.5)
    server._prepare_keys(range(len(names)), RoundStats())
    return server._request(server._key_shares, {"": [1.0] * len(names)})


def logits(count: int, rows: int = 60) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(count)
    return [torch.randn(rows, 10, generator=draw) * 3 for _ in range(count)]
