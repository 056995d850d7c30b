"""The sequence of actions of a run, computed without data: what a client may expect to be asked to do.

A site compares the server's requests with this sequence. It runs the method's own generators and feeds them aggregates
of zero payloads, which have the declared names, shapes and dtypes. A method's sequence may depend on its options, the
round and the state of its server, but not on the values that clients send.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import astuple
from typing import Any, NamedTuple

import torch

from fedchoir.core.actions import Action, Exchange, Script
from fedchoir.core.eligibility import mean_weights
from fedchoir.core.exchange import State, state_shapes
from fedchoir.core.interfaces import FederatedMethod
from fedchoir.payload import Payload, declared_by, zero_payload


class ActionName(NamedTuple):
    """An action without its content: what is asked, about which public batches, the dimensions of the payload, and the
    clients' weights in the mean (by payload name; None where the aggregate is no mean)."""

    kind: str
    function: str
    batches: tuple[tuple[int, ...], ...] = ()
    dims: tuple[tuple[str, int], ...] = ()
    weights: tuple[tuple[str, tuple[float, ...]], ...] | None = None

    @classmethod
    def read(cls, packed: Sequence[Any]) -> ActionName:
        """The inverse of its JSON form."""
        kind, function, batches, dims, weights = packed
        by_name = None if weights is None else tuple((name, tuple(by)) for name, by in weights)
        return cls(kind, function, tuple(map(tuple, batches)), tuple((name, size) for name, size in dims), by_name)

    def asks_for(self, other: ActionName) -> bool:
        """Whether both ask a client for the same. Weights concern the server: they do not travel with an action."""
        return self._replace(weights=None) == other._replace(weights=None)


def action_name(action: Action) -> ActionName:
    batches = tuple(astuple(batch) for batch in action.batches)
    if isinstance(action, Exchange):
        found = mean_weights(action.aggregator())
        weights = None if found is None else tuple((name, tuple(by)) for name, by in found.items())
        return ActionName("exchange", action.function.__name__, batches, tuple(sorted(action.dims.items())), weights)
    return ActionName("step", action.function.__name__, batches)


def action_sequences(method: FederatedMethod) -> Iterator[list[ActionName]]:
    """The actions of round 0 (the method's setup first), of round 1, and so on. The method's state does not change."""
    method = copy(method)
    method.server = {}
    everyone = tuple(range(len(method.spec.clients)))
    for index in range(method.spec.rounds):
        r = method.spec.round(index, method.params)
        setup = list(_actions(method, method.setup(), everyone)) if index == 0 else []
        yield setup + list(_actions(method, method.round(r), r.clients))


def _actions(method: FederatedMethod, script: Script, clients: tuple[int, ...]) -> Iterator[ActionName]:
    aggregated: Any = None
    while True:
        try:
            action = script.send(aggregated)
        except StopIteration:
            return
        yield action_name(action)
        aggregated = _zero_aggregate(method, action, clients) if isinstance(action, Exchange) else None


@torch.no_grad()
def _zero_aggregate(method: FederatedMethod, exchange: Exchange, clients: tuple[int, ...]) -> Any:
    aggregator = exchange.aggregator()
    payloads: list[Payload] = []
    shapes: tuple[State | None, State | None] | None = None
    for k in clients:
        own = state_shapes(method, exchange.function, k)
        if shapes is None or own[0] is not shapes[0]:  # clients with one architecture send payloads of the same shapes
            shapes, payloads = own, _zero_payloads(method, exchange, *own)
        aggregator.add(k, payloads)
    result = aggregator.result()
    return result if exchange.batches else result[0]


def _zero_payloads(
    method: FederatedMethod, exchange: Exchange, model: State | None, modules: State | None
) -> list[Payload]:
    """One client's reply with zeros in place of all numbers."""
    declared, dims = declared_by(exchange.function), {**method.spec.dims, **exchange.dims}
    local = [batch.dims for batch in exchange.batches] or [{}]
    return [zero_payload(declared, dims | own, model, modules) for own in local]
