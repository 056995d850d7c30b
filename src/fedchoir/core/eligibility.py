"""Whether a method's exchanges can run as secure aggregation, and with which weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from fedchoir.compression.chain import Chain, parse
from fedchoir.core.aggregation import Aggregator, ByName, CountedMean, Mean
from fedchoir.privacy.secure_aggregation.terms import MIN_CLIENTS
from fedchoir.utils.errors import UsageError

if TYPE_CHECKING:
    from fedchoir.core.interfaces import FederatedMethod

Secure = bool | Literal["strict"]


def check_secure(method: type[FederatedMethod], params: Any, clients: int, compress: str = "") -> None:
    """Refuse, before anything starts, what secure aggregation cannot give."""
    why = method.requires_individual_payloads(params)
    if not why and (chain := parse(compress).up) is not None:
        why = (
            f"compress = {compress!r} changes what clients send: {_unsummable(chain)}; down=CHAIN compresses what the "
            "server sends"
        )
    if not why and params.robust != "mean":
        why = f"robust = {params.robust!r} compares individual payloads; set it to 'mean'"
    if not why and params.fraction < 1:
        why = f"fraction = {params.fraction:g} changes who is in the sum from round to round; set it to 1"
    if not why and params.join_late:
        why = f"join_late = {','.join(params.join_late)!r} changes who is in the sum; leave it out"
    if not why and clients < MIN_CLIENTS:
        why = f"{clients} clients are too few: from a sum of two, each knows the other's summand; use at least 3"
    if why:
        raise UsageError(f"secure = true is not possible with {method.name}: {why}")


def _unsummable(chain: Chain) -> str:
    """Why masked payloads cannot be compressed in this way."""
    if chain.topk is not None:
        return "clients leave out different numbers, and masks hide which"
    if chain.lowrank is not None:
        return "a sum of factors is not the factors of a sum"
    if chain.rounding == "int8":
        return "every client has a scale of its own, and codes of different scales cannot be summed"
    if chain.rounding == "fp16":
        return "masked numbers are 32-bit integers, so that fp16 would lose precision and save nothing"
    return "masked numbers are random and do not become smaller"


def mean_weights(aggregator: Aggregator) -> dict[str, Sequence[float]] | None:
    """Weights by client for each payload name (the empty name stands for all; an empty sequence: all clients alike);
    None where a mean is not enough."""
    if isinstance(aggregator, Mean) and not isinstance(aggregator, CountedMean):
        return {"": aggregator.weights or ()}
    if isinstance(aggregator, ByName):
        weights: dict[str, Sequence[float]] = {}
        for name, inner in aggregator.aggregators.items():
            found = mean_weights(inner)
            if found is None or set(found) != {""}:
                return None
            weights[name] = found[""]
        return weights
    return None
