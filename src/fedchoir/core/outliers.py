"""Payloads that are far larger than those of the other clients. In a mean, one of them would decide alone.

A finite but absurd payload makes models useless or non-finite, and the checkpoint after it holds them. So every tensor
of a reply is compared with the median over the clients: it is enough that most of them are honest. Robust rules
(`core.robust`) limit more; they are an option because they change honest means, too.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING

import torch

from fedchoir.core.aggregation import Payloads

if TYPE_CHECKING:
    from fedchoir.core.exchange import Reply

FACTOR = 100.0  # a tensor may be so many times as large as the median over the clients
ALWAYS = 100.0  # a magnitude that is never refused
HELD = 16  # replies that give the median: no more of them are in memory at once

Sizes = Mapping[tuple[int, str], float]
"""The largest magnitude of each floating-point tensor, by the number of the payload and the tensor's name."""


def without_outliers(replies: Iterable[Reply], leave_out: Callable[[Reply, str], None]) -> Iterator[Reply]:
    """Pass replies on, except those with a tensor far larger than the others'; ``leave_out`` gets the reason."""
    rest = iter(replies)
    held = deque(islice(rest, HELD))
    limits = limits_of([sizes(reply.payloads) for reply in held])
    for reply in chain(_emptied(held), rest):
        found = sizes(reply.payloads)
        key, size = max(found.items(), key=lambda item: item[1] / limits[item[0]], default=((0, ""), 0.0))
        if found and size > limits[key]:
            leave_out(reply, f"{key[1]} has a number of magnitude {size:.3g}, and {limits[key]:.3g} is plausible here")
        else:
            yield reply


def _emptied(held: deque[Reply]) -> Iterator[Reply]:
    while held:
        yield held.popleft()


def limits_of(known: list[Sizes]) -> Sizes:
    """The largest plausible magnitudes. Of two clients the smaller one counts.

    >>> limits_of([{(0, "w"): 2.0}, {(0, "w"): 1.5}, {(0, "w"): 9e8}])
    {(0, 'w'): 200.0}
    """
    keys = known[0] if known else ()
    return {key: max(ALWAYS, FACTOR * statistics.median_low([sizes[key] for sizes in known])) for key in keys}


def sizes(payloads: Payloads) -> Sizes:
    """The largest magnitudes of a reply. They are read from the device at once."""
    tensors = {
        (number, name): t
        for number, payload in enumerate(payloads)
        for name, t in payload.items()
        if t.is_floating_point() and t.numel()
    }
    if not tensors:
        return {}
    largest = torch.stack([t.detach().abs().amax().float() for t in tensors.values()]).tolist()
    return dict(zip(tensors, largest, strict=True))
