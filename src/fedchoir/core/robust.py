"""Rules that a few hostile clients cannot bend, in place of a mean; and the attacks to rehearse them with.

They stand in wherever a method takes a (weighted) mean. They look at single answers, so they cannot be had together
with secure sums, and they hold K answers where a mean streams. Client weights are not used: a hostile client could
claim any.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from fedchoir.core.aggregation import Aggregator, ByName, Mean, Payloads
from fedchoir.payload import Payload

Rule = Literal["mean", "median", "trimmed_mean", "krum"]
Attack = Literal["none", "sign_flip", "noise", "label_flip", "nan"]
NOISE = 10.0  # standard deviations of what the client would have said


class Robust:
    """Keeps every answer and combines them coordinate by coordinate (median, trimmed mean) or by distance (Krum).

    >>> r = Robust("median", 0.2)
    >>> for k, x in enumerate([1.0, 2.0, 900.0]): r.add(k, [Payload(x=torch.tensor([x]))])
    >>> r.result()[0]["x"]
    tensor([2.])
    """

    def __init__(self, rule: Rule, share: float) -> None:
        self._rule, self._share = rule, share
        self._answers: list[Payloads] = []

    def add(self, client: int, payloads: Payloads) -> None:
        self._answers.append(payloads)

    def result(self) -> list[Payload]:
        count = len(self._answers)
        bad = min(max(1, math.ceil(self._share * count)), (count - 1) // 2)
        answers: Sequence[Payloads] = self._answers
        if self._rule == "krum" and bad:
            kept = krum(torch.stack([_flat(payloads) for payloads in answers]), bad)
            answers = [answers[k] for k in kept]
        reduce: Callable[[Tensor], Tensor] = {
            "median": median,
            "trimmed_mean": lambda x: trimmed_mean(x, bad),
        }.get(self._rule, lambda x: x.mean(0))
        return [_together(column, reduce) for column in zip(*answers, strict=True)]


def median(answers: Tensor) -> Tensor:
    """The middle of K answers (K×…), coordinate by coordinate; of an even number the mean of the two in the middle.

    >>> median(torch.tensor([[1.0], [3.0], [50.0], [2.0]]))
    tensor([2.5000])
    """
    ordered = answers.sort(dim=0).values
    count = len(answers)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def trimmed_mean(answers: Tensor, bad: int) -> Tensor:
    """The mean of K answers (K×…) without the ``bad`` lowest and highest of each coordinate.

    >>> trimmed_mean(torch.tensor([[1.0], [3.0], [50.0], [2.0]]), 1)
    tensor([2.5000])
    """
    return answers.sort(dim=0).values[bad : len(answers) - bad].mean(0)


def krum(answers: Tensor, bad: int) -> list[int]:
    """Multi-Krum (Blanchard et al., NeurIPS 2017): the K − bad answers (of K×D) that lie nearest to their neighbours.

    >>> krum(torch.tensor([[1.0], [1.1], [0.9], [30.0]]), 1)
    [0, 1, 2]
    """
    count = len(answers)
    distances = torch.cdist(answers, answers).square()
    near = max(1, count - bad - 2)
    scores = distances.sort(dim=1).values[:, 1 : near + 1].sum(1)
    return sorted(scores.argsort(stable=True)[: count - bad].tolist())


def defended(aggregator: Aggregator, rule: Rule, share: float) -> Aggregator:
    """The combiner with every mean in it replaced by a robust rule; others, which need each answer, stay."""
    if rule == "mean":
        return aggregator
    if isinstance(aggregator, Mean):
        return Robust(rule, share)
    if isinstance(aggregator, ByName):
        return ByName({name: _always(defended(way, rule, share)) for name, way in aggregator.factories.items()})
    return aggregator


def _always(aggregator: Aggregator) -> Callable[[], Aggregator]:
    return lambda: aggregator


def _flat(payloads: Payloads) -> Tensor:
    """All numbers of an answer in one row, on the CPU: there are few answers, and scalars are there anyway."""
    tensors = [t.flatten().double().cpu() for payload in payloads for _, t in sorted(payload.items())]
    scalars = [value for payload in payloads for _, value in sorted(payload.scalars.items())]
    return torch.cat([*tensors, torch.tensor(scalars, dtype=torch.float64)])


def _together(column: Sequence[Payload], reduce: Callable[[Tensor], Tensor]) -> Payload:
    tensors = {}
    for name, first in column[0].items():
        combined = reduce(torch.stack([payload[name].double() for payload in column]))
        tensors[name] = combined.to(first.dtype) if first.is_floating_point() else combined.round().to(first.dtype)
    scalars = {
        name: float(reduce(torch.tensor([[p.scalars[name]] for p in column], dtype=torch.float64)))
        for name in column[0].scalars
    }
    return Payload(tensors, scalars=scalars)


def corrupted(answers: Sequence[Payload], attack: Attack, draw: torch.Generator) -> list[Payload]:
    """What a hostile client sends instead of its answers."""
    change: Callable[[Tensor], Tensor] = {
        "sign_flip": lambda t: -t,
        "noise": lambda t: t + NOISE * _spread(t) * torch.randn(t.shape, generator=draw).to(t),
        "nan": lambda t: t * float("nan"),
    }.get(attack, lambda t: t)
    return [
        Payload({n: change(t) if t.is_floating_point() else t for n, t in p.items()}, scalars=p.scalars)
        for p in answers
    ]


def _spread(t: Tensor) -> Tensor:
    return t.std() if t.numel() > 1 else torch.ones_like(t).mean()


def flipped(labels: Tensor, classes: int) -> Tensor:
    """Labels of a client that lies about them: class c becomes C − 1 − c.

    >>> flipped(torch.tensor([0, 3, 9]), 10)
    tensor([9, 6, 0])
    """
    return classes - 1 - labels
