"""Quantisation for secure aggregation: payloads as rows of integers, and sums of such rows as mean payloads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedchoir.payload import Payload, PayloadError
from fedchoir.privacy.secure_aggregation.fixed_point import FixedPoint, Words
from fedchoir.privacy.secure_aggregation.terms import SecureAggregationError

REALS, COUNTS = 1024.0, 2.0**22  # clip of real numbers, clip of counters
Layout = list[dict[str, list[Any]]]
"""For each payload: ``{"tensors": [[name, shape, dtype], …], "scalars": [name, …]}``."""


@dataclass(frozen=True)
class PackedPayloads:
    words: Words
    layout: Layout
    clipped: int  # how many numbers were clipped


def layout_of(payloads: Sequence[Payload]) -> Layout:
    return [
        {"tensors": [[n, list(t.shape), str(t.dtype).removeprefix("torch.")] for n, t in part.items()],
         "scalars": list(part.scalars)}
        for part in payloads
    ]  # fmt: skip


def pack(payloads: Sequence[Payload], weight: Callable[[str], float], count: int) -> PackedPayloads:
    """Payloads as integers, each number times the weight of its name, so that ``count`` replies can be added."""
    rows, clipped = [], 0
    for part in payloads:
        for name, t in [*part.items(), *((n, torch.tensor(v)) for n, v in part.scalars.items())]:
            point = _point(t, count)
            values = t.detach().cpu().to(torch.float64).numpy().ravel()
            rows.append(point.words(values, weight(name)))
            clipped += point.clipped(values)
    return PackedPayloads(np.concatenate(rows) if rows else np.zeros(0, dtype=np.uint32), layout_of(payloads), clipped)


def unpack_mean(total: Words, layout: Layout, weight: Callable[[str], float], count: int) -> list[Payload]:
    """The mean as payloads; ``weight`` is the total weight of the participants in the sum. A mean beyond the clip is
    refused, with its name."""
    payloads, at = [], 0

    def next_mean(name: str, t: Tensor) -> Tensor:
        nonlocal at
        words, at = total[at : at + t.numel()], at + t.numel()
        try:
            return torch.from_numpy(_point(t, count).mean(words, weight(name))).reshape(t.shape)
        except SecureAggregationError as error:
            raise SecureAggregationError(f"{name}: {error}") from None

    for blank in empty_payloads(layout):
        means = {name: next_mean(name, t) for name, t in blank.items()}
        tensors = {n: (m if blank[n].is_floating_point() else m.round()).to(blank[n].dtype) for n, m in means.items()}
        scalars = {name: next_mean(name, torch.zeros(())).item() for name in blank.scalars}
        payloads.append(Payload(tensors, scalars=scalars))
    return payloads


def empty_payloads(layout: Layout, size: int | None = None) -> list[Payload]:
    """Zero payloads of this layout, for checking the declaration; they must hold ``size`` numbers if given."""
    try:
        message = [[(str(n), tuple(map(int, shape)), str(dtype)) for n, shape, dtype in p["tensors"]] for p in layout]
        scalars = [[str(name) for name in part["scalars"]] for part in layout]
        numbers = sum(int(np.prod(shape, dtype=object)) for part in message for _, shape, _ in part)
        if size is not None and numbers + sum(map(len, scalars)) != size:
            raise PayloadError(f"sent {size} numbers where its layout has {numbers}")
        return [
            Payload({n: torch.zeros(shape, dtype=_dtype(dtype)) for n, shape, dtype in part},
                    scalars=dict.fromkeys(names, 0.0))
            for part, names in zip(message, scalars, strict=True)
        ]  # fmt: skip
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, PayloadError):
            raise
        raise PayloadError(f"the layout of a masked payload is malformed: {error!r}") from None


def weight_of(weights: Mapping[str, float], name: str) -> float:
    """The weight of a tensor: of its name, of its prefix, or of all (the empty name)."""
    for prefix in (name, name.partition("/")[0], ""):
        if prefix in weights:
            return weights[prefix]
    raise PayloadError(f"there is no weight for {name}")


def _point(t: Tensor, count: int) -> FixedPoint:
    return FixedPoint(count, REALS if t.is_floating_point() else COUNTS)


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise PayloadError(f"{name!r} is not a dtype")
    return dtype
