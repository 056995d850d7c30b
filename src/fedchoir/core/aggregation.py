"""Aggregators: how the server aggregates the clients' payloads.

An aggregator takes payloads one client at a time, in the order of the clients. The server then holds a running mean
instead of K payloads, and the result does not depend on who replied first.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedchoir.payload import Payload

Payloads = Sequence[Payload]
"""One client's reply: one payload, or one for each public batch."""


class Aggregator(Protocol):
    """Takes the payloads of one client after the other and gives their aggregate."""

    def add(self, client: int, payloads: Payloads) -> None: ...

    def result(self) -> list[Any]:
        """One aggregate for each payload of a reply."""


AggregatorFactory = Callable[[], Aggregator]


class Mean:
    """A running (weighted) mean over clients, tensor by tensor and scalar by scalar.

    >>> m = Mean()
    >>> m.add(0, [Payload(x=torch.tensor([1.0]))]); m.add(1, [Payload(x=torch.tensor([3.0]))])
    >>> m.result()[0]["x"]
    tensor([2.])
    """

    def __init__(self, weights: Sequence[float] | None = None) -> None:
        self.weights = weights
        self._total = 0.0
        self._sums: list[dict[str, Tensor]] = []
        self._scalars: list[dict[str, float]] = []
        self._dtypes: list[dict[str, torch.dtype]] = []

    def add(self, client: int, payloads: Payloads) -> None:
        weight = 1.0 if self.weights is None else float(self.weights[client])
        if not self._sums:
            self._sums = [{n: torch.zeros_like(t, dtype=_sum_dtype(t)) for n, t in p.items()} for p in payloads]
            self._scalars = [dict.fromkeys(p.scalars, 0.0) for p in payloads]
            self._dtypes = [{n: t.dtype for n, t in p.items()} for p in payloads]
        self._total += weight
        for sums, scalars, payload in zip(self._sums, self._scalars, payloads, strict=True):
            for name, t in payload.items():
                sums[name].add_(t.to(sums[name].dtype), alpha=weight)
            for name, value in payload.scalars.items():
                scalars[name] += weight * value

    def result(self) -> list[Payload]:
        if self._total <= 0:
            raise ValueError("a mean needs at least one client with a weight above 0")
        total = self._total
        return [
            Payload(
                {n: rounded(t / total, dtypes[n]) for n, t in sums.items()},
                scalars={n: v / total for n, v in scalars.items()},
            )
            for sums, scalars, dtypes in zip(self._sums, self._scalars, self._dtypes, strict=True)
        ]


class CountedMean(Mean):
    """A mean whose weights depend on what clients sent in this round, so that no site can compute them in advance."""


class Gather:
    """Keeps every client's payload, ``{client: payload}``, for servers that need more than a mean."""

    def __init__(self) -> None:
        self._payloads: list[dict[int, Payload]] = []

    def add(self, client: int, payloads: Payloads) -> None:
        self._payloads = self._payloads or [{} for _ in payloads]
        for collected, payload in zip(self._payloads, payloads, strict=True):
            collected[client] = payload

    def result(self) -> list[dict[int, Payload]]:
        return self._payloads


class GroupMean:
    """The (weighted) mean within each group of clients, ``{client: payload}``: groups may have different tensors.

    >>> m = GroupMean(["a", "b", "a"])
    >>> for k in range(3): m.add(k, [Payload(x=torch.tensor([float(k)]))])
    >>> [payload["x"].item() for payload in m.result()[0].values()]
    [1.0, 1.0, 1.0]
    """

    def __init__(self, groups: Sequence[str], weights: Sequence[float] | None = None) -> None:
        self._groups, self._weights = groups, weights
        self._means: dict[str, Mean] = {}

    def add(self, client: int, payloads: Payloads) -> None:
        self._means.setdefault(self._groups[client], Mean(self._weights)).add(client, payloads)

    def result(self) -> list[dict[int, Payload]]:
        means = {group: mean.result() for group, mean in self._means.items()}
        by_client = {k: means[group] for k, group in enumerate(self._groups) if group in means}
        return [{k: payloads[i] for k, payloads in by_client.items()} for i in range(len(next(iter(means.values()))))]


class ByName:
    """Applies a different aggregator to each name, or prefix of names, of a payload.

    >>> split = ByName({"w": weighted_mean([3.0, 1.0]), "u": mean})
    >>> for k in (0, 1):
    ...     split.add(k, [Payload({"w/bias": torch.tensor([4.0 * k]), "u": torch.tensor([4.0 * k])})])
    >>> {name: t.item() for name, t in split.result()[0].items()}
    {'w/bias': 1.0, 'u': 2.0}
    """

    def __init__(self, factories: Mapping[str, AggregatorFactory]) -> None:
        self.aggregators = {name: factory() for name, factory in factories.items()}

    def add(self, client: int, payloads: Payloads) -> None:
        for name, aggregator in self.aggregators.items():
            aggregator.add(client, [payload.only(name) for payload in payloads])

    def result(self) -> list[Payload]:
        columns = zip(*(aggregator.result() for aggregator in self.aggregators.values()), strict=True)
        return [
            Payload(
                {n: t for p in column for n, t in p.items()},
                scalars={n: v for p in column for n, v in p.scalars.items()},
            )
            for column in columns
        ]


def mean() -> Aggregator:
    """The unweighted mean over clients."""
    return Mean()


def gather() -> Aggregator:
    """All payloads, by client."""
    return Gather()


def weighted_mean(weights: Sequence[float]) -> AggregatorFactory:
    """The mean in which client k has ``weights[k]``."""
    return lambda: Mean(weights)


def by_name(**factories: AggregatorFactory) -> AggregatorFactory:
    """An aggregator for every name or prefix: ``by_name(weights=weighted_mean(sizes), prototypes=mean)``."""
    return lambda: ByName(factories)


def rounded(t: Tensor, dtype: torch.dtype) -> Tensor:
    """An aggregate in the dtype of its summands; integers are rounded."""
    return t.to(dtype) if dtype.is_floating_point else t.round().to(dtype)


def _sum_dtype(t: Tensor) -> torch.dtype:
    # Integer counters such as BatchNorm's num_batches_tracked are averaged in float64.
    return t.dtype if t.is_floating_point() else torch.float64


@torch.no_grad()
def blend(module: nn.Module, state: Mapping[str, Tensor], share: Tensor | float) -> None:
    """Replace a module's weights by (1 − share)·own + share·state, in place; counters follow the larger share."""
    for name, own in module.state_dict().items():
        other = state[name]
        if own.is_floating_point():
            own.copy_(own.lerp(other, share))
        else:
            own.copy_(torch.where(torch.as_tensor(share, device=own.device) > 0.5, other, own))
