"""The sequence of actions of a run, computed without data: what a client may expect to be asked to do.

A site compares the server's requests with this sequence. It runs the method's own generators and feeds them aggregates
of zero payloads, which have the declared names, shapes and dtypes. A method's sequence may depend on its options, the
round and the state of its server, but not on the values that clients send.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import astuple
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedchoir.core.actions import Action, Exchange, Script
from fedchoir.core.eligibility import mean_weights
from fedchoir.core.interfaces import FederatedMethod
from fedchoir.payload import MODULE, declared_by, zero_payload


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


def action_sequences(method: FederatedMethod, model: Mapping[str, Tensor] | None = None) -> Iterator[list[ActionName]]:
    """The actions of round 0 (the method's setup first), of round 1, and so on.

    Args:
        method: it is copied, and its state does not change.
        model: the state dict of the shared architecture; None where clients have different ones.
    """
    method = copy(method)
    method.server = {}
    everyone = tuple(range(len(method.spec.clients)))
    for index in range(method.spec.rounds):
        r = method.spec.round(index, method.params)
        setup = list(_actions(method, method.setup(), everyone, model)) if index == 0 else []
        yield setup + list(_actions(method, method.round(r), r.clients, model))


def _actions(
    method: FederatedMethod, script: Script, clients: tuple[int, ...], model: Mapping[str, Tensor] | None
) -> Iterator[ActionName]:
    aggregated: Any = None
    while True:
        try:
            action = script.send(aggregated)
        except StopIteration:
            return
        yield action_name(action)
        aggregated = _zero_aggregate(method, action, clients, model) if isinstance(action, Exchange) else None


@torch.no_grad()
def _zero_aggregate(
    method: FederatedMethod, exchange: Exchange, clients: tuple[int, ...], model: Mapping[str, Tensor] | None
) -> Any:
    declared = declared_by(exchange.function)
    modules = method.module_shapes if MODULE in declared.values() else None
    dims = {**method.spec.dims, **exchange.dims}
    batches = exchange.batches or (None,)
    payloads = [zero_payload(declared, dims | (batch.dims if batch else {}), model, modules) for batch in batches]
    aggregator = exchange.aggregator()
    for k in clients:
        aggregator.add(k, payloads)
    result = aggregator.result()
    return result if exchange.batches else result[0]
