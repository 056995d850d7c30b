"""Gradients of weights, several at once: nobody needs them before the optimiser's step.

On its way back through a model a step needs the gradient of each layer's input before it can go on, but not that of
its weights; and most of these kernels are too small to fill a GPU. So inside of `weights_aside` they wait until there
are some, and then run side by side, each on one of a few streams. Elsewhere they are found at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor

STREAMS = 4
AT_ONCE = 8  # so many layers wait at most: what they wait with is memory that could be used again

Find = Callable[[], tuple[Tensor, ...]]


@dataclass
class _Waiting:
    device: torch.device
    layers: list[tuple[Find, tuple[Tensor, ...]]] = field(default_factory=list)
    homes: dict[int, int] = field(default_factory=dict)
    """The stream of a layer, by its first weight: of one that is used twice, both gradients are found there."""

    def add(self, find: Find, weights: tuple[Tensor, ...]) -> None:
        self.homes.setdefault(id(weights[0]), len(self.homes) % STREAMS)
        self.layers.append((find, weights))
        if len(self.layers) == AT_ONCE:
            self.run()

    def run(self) -> None:
        with _beside(self.device) as streams:
            for find, weights in self.layers:
                home = self.homes[id(weights[0])]
                with streams[home], _on(1 + home):
                    for weight, gradient in zip(weights, find(), strict=True):
                        weight.grad = gradient if weight.grad is None else weight.grad + gradient
        self.layers.clear()


_waiting: _Waiting | None = None
_here = 0


def here() -> int:
    """On which stream kernels are started now: 0 is the main one."""
    return _here


@contextmanager
def _on(stream: int) -> Iterator[None]:
    global _here
    before, _here = _here, stream
    try:
        yield
    finally:
        _here = before


@cache
def _streams(device: torch.device) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(STREAMS)]


@contextmanager
def _beside(device: torch.device) -> Iterator[list[AbstractContextManager[object]]]:
    """Streams that begin where the main one is, and that it waits for at the end; a CPU has none."""
    if device.type != "cuda":
        yield [nullcontext()] * STREAMS
        return
    main, sides = torch.cuda.current_stream(device), _streams(device)
    for side in sides:
        side.wait_stream(main)
    yield [torch.cuda.stream(side) for side in sides]
    for side in sides:
        main.wait_stream(side)


@contextmanager
def weights_aside(device: torch.device) -> Iterator[None]:
    """For a backward pass: at its end all weights have their gradients."""
    global _waiting
    _waiting = _Waiting(device)
    try:
        yield
        _waiting.run()
    finally:
        _waiting = None


def gradients(find: Find, *weights: Tensor) -> tuple[Tensor | None, ...]:
    """What a layer's backward pass returns for its weights: the gradients, or nothing where they come by themselves."""
    if _waiting is None or not all(w.is_leaf and w.requires_grad for w in weights):
        return find()
    _waiting.add(find, weights)
    return (None,) * len(weights)
