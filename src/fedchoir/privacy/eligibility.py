"""Whether a method's server can do with sums alone, and which weights they need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from fedchoir.core.aggregation import Aggregator, ByName, Mean
from fedchoir.core.settings import Settings
from fedchoir.utils.errors import UsageError

if TYPE_CHECKING:
    from fedchoir.methods.base import Method

Secure = bool | Literal["strict"]
FEWEST = 3


def check_secure(method: type[Method], params: Settings, clients: int) -> None:
    """Refuse before anything starts what a secure sum cannot give; one line says why."""
    why = method.requires_individual_payloads(params)
    if not why and params.robust != "mean":
        why = f"robust = {params.robust!r} compares single answers; it should be 'mean'"
    if not why and params.fraction < 1:
        why = f"fraction = {params.fraction:g} changes who is in the sum from round to round; it should be 1"
    if not why and clients < FEWEST:
        why = f"{clients} clients are too few, because from a sum of two each knows the other's part; it takes 3"
    if why:
        raise UsageError(f"secure = true is not possible with {method.name}: {why}")


def sum_weights(aggregator: Aggregator, clients: int) -> dict[str, Sequence[float]] | None:
    """Weights by client for each name (the empty one stands for all), or None where a mean is not enough."""
    if isinstance(aggregator, Mean):
        return {"": aggregator.weights or [1.0] * clients}
    if isinstance(aggregator, ByName):
        told: dict[str, Sequence[float]] = {}
        for name, way in aggregator.factories.items():
            inner = sum_weights(way, clients)
            if inner is None or set(inner) != {""}:
                return None
            told[name] = inner[""]
        return told
    return None
