"""Robust aggregation rules that replace a mean, and simulated attacks to test them with.

A rule replaces every (weighted) mean of a method. It compares individual payloads, so it excludes secure aggregation,
and it stores K payloads where a mean streams. Client weights are ignored: a hostile client could claim any.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from fedchoir.core.aggregation import Aggregator, ByName, Mean, Payloads, rounded
from fedchoir.payload import Payload

Rule = Literal["mean", "median", "trimmed_mean", "krum"]
Attack = Literal["none", "sign_flip", "noise", "label_flip", "nan"]
NOISE = 10.0  # in standard deviations of the honest payload


class Robust:
    """Stores every payload and aggregates by coordinate (median, trimmed mean) or by distance (Krum).

    >>> r = Robust("median", 0.2)
    >>> for k, x in enumerate([1.0, 2.0, 900.0]): r.add(k, [Payload(x=torch.tensor([x]))])
    >>> r.result()[0]["x"]
    tensor([2.])
    """

    def __init__(self, rule: Rule, share: float) -> None:
        self._rule, self._share = rule, share
        self._replies: list[Payloads] = []

    def add(self, client: int, payloads: Payloads) -> None:
        self._replies.append(payloads)

    def result(self) -> list[Payload]:
        count = len(self._replies)
        bad = min(max(1, math.ceil(self._share * count)), (count - 1) // 2)
        replies: Sequence[Payloads] = self._replies
        if self._rule == "krum" and bad:
            kept = krum(torch.stack([_flat(payloads) for payloads in replies]), bad)
            replies = [replies[k] for k in kept]
        reduce: Callable[[Tensor], Tensor] = {
            "median": median,
            "trimmed_mean": lambda x: trimmed_mean(x, bad),
        }.get(self._rule, lambda x: x.mean(0))
        return [_reduced(column, reduce) for column in zip(*replies, strict=True)]


def median(values: Tensor) -> Tensor:
    """The coordinate-wise median of K values (K×…); for even K the mean of the two middle values.

    >>> median(torch.tensor([[1.0], [3.0], [50.0], [2.0]]))
    tensor([2.5000])
    """
    ordered = values.sort(dim=0).values
    count = len(values)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def trimmed_mean(values: Tensor, bad: int) -> Tensor:
    """The coordinate-wise mean of K values (K×…) without the ``bad`` lowest and highest.

    >>> trimmed_mean(torch.tensor([[1.0], [3.0], [50.0], [2.0]]), 1)
    tensor([2.5000])
    """
    return values.sort(dim=0).values[bad : len(values) - bad].mean(0)


def krum(values: Tensor, bad: int) -> list[int]:
    """Multi-Krum (Blanchard et al., NeurIPS 2017): the K − bad rows (of K×D) with the nearest neighbours.

    >>> krum(torch.tensor([[1.0], [1.1], [0.9], [30.0]]), 1)
    [0, 1, 2]
    """
    count = len(values)
    distances = torch.cdist(values, values).square()
    near = max(1, count - bad - 2)
    scores = distances.sort(dim=1).values[:, 1 : near + 1].sum(1)
    return sorted(scores.argsort(stable=True)[: count - bad].tolist())


def defended(aggregator: Aggregator, rule: Rule, share: float) -> Aggregator:
    """The aggregator with every mean in it replaced by a robust rule."""
    if rule == "mean":
        return aggregator
    if isinstance(aggregator, Mean):
        return Robust(rule, share)
    if isinstance(aggregator, ByName):
        return ByName({name: partial(defended, inner, rule, share) for name, inner in aggregator.aggregators.items()})
    return aggregator


def _flat(payloads: Payloads) -> Tensor:
    """All numbers of a reply in one row, on the CPU."""
    tensors = [t.flatten().double().cpu() for payload in payloads for _, t in sorted(payload.items())]
    scalars = [value for payload in payloads for _, value in sorted(payload.scalars.items())]
    return torch.cat([*tensors, torch.tensor(scalars, dtype=torch.float64)])


def _reduced(column: Sequence[Payload], reduce: Callable[[Tensor], Tensor]) -> Payload:
    tensors = {}
    for name, first in column[0].items():
        reduced = reduce(torch.stack([payload[name].double() for payload in column]))
        tensors[name] = rounded(reduced, first.dtype)
    scalars = {
        name: float(reduce(torch.tensor([[p.scalars[name]] for p in column], dtype=torch.float64)))
        for name in column[0].scalars
    }
    return Payload(tensors, scalars=scalars)


def corrupted(payloads: Sequence[Payload], attack: Attack, generator: torch.Generator) -> list[Payload]:
    """What a hostile client sends instead of its payloads."""
    change: Callable[[Tensor], Tensor] = {
        "sign_flip": lambda t: -t,
        "noise": lambda t: t + NOISE * _spread(t) * torch.randn(t.shape, generator=generator).to(t),
        "nan": lambda t: t * float("nan"),
    }.get(attack, lambda t: t)
    return [
        Payload({n: change(t) if t.is_floating_point() else t for n, t in p.items()}, scalars=p.scalars)
        for p in payloads
    ]


def _spread(t: Tensor) -> Tensor:
    return t.std() if t.numel() > 1 else torch.ones_like(t).mean()


def flipped_labels(labels: Tensor, classes: int) -> Tensor:
    """Labels of a hostile client: class c becomes C − 1 − c.

    >>> flipped_labels(torch.tensor([0, 3, 9]), 10)
    tensor([9, 6, 0])
    """
    return classes - 1 - labels
