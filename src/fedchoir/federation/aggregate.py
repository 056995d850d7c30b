"""Combining what clients said. A combiner takes replies one at a time and in the order of the clients, so that the
server holds a running mean and not K replies, and the sum does not depend on who answered first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from fedchoir.federation.payload import Payload

Parts = Sequence[Payload]
"""One client's answer: one payload, or one for each public batch."""


class Combiner(Protocol):
    def add(self, client: int, parts: Parts) -> None: ...

    def result(self) -> list[Any]:
        """One combined value for each part."""


Combine = Callable[[], Combiner]


class Mean:
    """A running (weighted) mean over clients, tensor by tensor and scalar by scalar.

    >>> m = Mean()
    >>> m.add(0, [Payload(x=torch.tensor([1.0]))]); m.add(1, [Payload(x=torch.tensor([3.0]))])
    >>> m.result()[0]["x"]
    tensor([2.])
    """

    def __init__(self, weights: Sequence[float] | None = None) -> None:
        self._weights = weights
        self._total = 0.0
        self._sums: list[dict[str, Tensor]] = []
        self._scalars: list[dict[str, float]] = []
        self._dtypes: list[dict[str, torch.dtype]] = []

    def add(self, client: int, parts: Parts) -> None:
        weight = 1.0 if self._weights is None else float(self._weights[client])
        if not self._sums:
            self._sums = [{n: torch.zeros_like(t, dtype=_wide(t)) for n, t in p.items()} for p in parts]
            self._scalars = [dict.fromkeys(p.scalars, 0.0) for p in parts]
            self._dtypes = [{n: t.dtype for n, t in p.items()} for p in parts]
        self._total += weight
        for sums, scalars, part in zip(self._sums, self._scalars, parts, strict=True):
            for name, t in part.items():
                sums[name].add_(t.to(sums[name].dtype), alpha=weight)
            for name, value in part.scalars.items():
                scalars[name] += weight * value

    def result(self) -> list[Payload]:
        if self._total <= 0:
            raise ValueError("a mean needs at least one client with a weight above 0")
        total = self._total
        return [
            Payload(
                {n: _narrow(t / total, dtypes[n]) for n, t in sums.items()},
                scalars={n: v / total for n, v in scalars.items()},
            )
            for sums, scalars, dtypes in zip(self._sums, self._scalars, self._dtypes, strict=True)
        ]


class Gather:
    """Keeps every client's answer: ``{client: payload}``. For servers that need more than a mean."""

    def __init__(self) -> None:
        self._answers: list[dict[int, Payload]] = []

    def add(self, client: int, parts: Parts) -> None:
        self._answers = self._answers or [{} for _ in parts]
        for answers, part in zip(self._answers, parts, strict=True):
            answers[client] = part

    def result(self) -> list[dict[int, Payload]]:
        return self._answers


def mean() -> Combiner:
    """Every client counts the same."""
    return Mean()


def gather() -> Combiner:
    """All answers, by client."""
    return Gather()


def weighted_mean(weights: Sequence[float]) -> Combine:
    """Client k counts ``weights[k]``."""
    return lambda: Mean(weights)


def _wide(t: Tensor) -> torch.dtype:
    # Counters such as BatchNorm's num_batches_tracked are integers: their mean is taken in float64 and rounded.
    return t.dtype if t.is_floating_point() else torch.float64


def _narrow(t: Tensor, dtype: torch.dtype) -> Tensor:
    return t if dtype.is_floating_point else t.round().to(dtype)
