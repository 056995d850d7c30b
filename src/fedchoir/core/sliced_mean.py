"""A mean of payloads of different widths: every number is averaged over the clients that have it."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from fedchoir.core.aggregation import Payloads, rounded
from fedchoir.payload import Payload

Place = tuple[str, tuple[Tensor, ...]]
"""Where a client's tensor belongs: the name of a full tensor, and an index into it."""
Places = Callable[[int], Mapping[str, Place]]
"""The places of all tensors that a client sends, by their names."""


class SlicedMean:
    """A running (weighted) mean by coverage. Numbers that no client has keep their previous value.

    >>> whole, half = ("w", (torch.arange(2),)), ("w", (torch.arange(1),))
    >>> m = SlicedMean({"w": torch.zeros(2)}, lambda client: {"w": [whole, half][client]})
    >>> m.add(0, [Payload(w=torch.tensor([1.0, 1.0]))]); m.add(1, [Payload(w=torch.tensor([3.0]))])
    >>> m.result()[0]["w"]
    tensor([2., 1.])
    """

    def __init__(self, previous: Mapping[str, Tensor], places: Places, weights: Sequence[float] | None = None) -> None:
        self._previous, self._places, self._weights = previous, places, weights
        self._sums: dict[str, Tensor] = {}
        self._totals: dict[str, Tensor] = {}

    def add(self, client: int, payloads: Payloads) -> None:
        weight = 1.0 if self._weights is None else float(self._weights[client])
        (payload,) = payloads
        places = self._places(client)
        for name, t in payload.items():
            target, index = places[name]
            if target not in self._sums:
                full = self._previous[target]
                dtype = full.dtype if full.is_floating_point() else torch.float64  # counters
                self._sums[target] = torch.zeros(full.shape, dtype=dtype, device=t.device)
                self._totals[target] = torch.zeros(full.shape, dtype=dtype, device=t.device)
            total, covered = self._sums[target], self._totals[target]
            total[index] = total[index].add(t.to(total.dtype), alpha=weight)
            covered[index] += weight

    def result(self) -> list[Payload]:
        merged = dict(self._previous)
        for target, total in self._sums.items():
            covered, before = self._totals[target], self._previous[target]
            mean = rounded(total / covered.where(covered > 0, 1), before.dtype)
            merged[target] = mean.where(covered > 0, before.to(mean.device))
        return [Payload(merged)]
