"""Weight gradients, computed several at a time on side streams.

A backward pass needs the gradient of each layer's input at once, but those of its weights only at the optimizer step;
and most of these kernels are too small to fill a GPU. Inside `deferred_weight_gradients` they wait until there are a
few and then run in parallel, each on one of a few streams. Outside of it they are computed immediately.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor

STREAMS = 4
MAX_PENDING = 8  # layers: what a pending one still needs is memory that cannot be reused

Compute = Callable[[], tuple[Tensor, ...]]


@dataclass
class _Queue:
    device: torch.device
    pending: list[tuple[Compute, tuple[Tensor, ...]]] = field(default_factory=list)
    streams: dict[int, int] = field(default_factory=dict)
    """A layer's stream, by its first weight: a layer that is used twice adds up its gradients on one stream."""

    def add(self, compute: Compute, weights: tuple[Tensor, ...]) -> None:
        self.streams.setdefault(id(weights[0]), len(self.streams) % STREAMS)
        self.pending.append((compute, weights))
        if len(self.pending) == MAX_PENDING:
            self.run()

    def run(self) -> None:
        with _side_streams(self.device) as contexts:
            for compute, weights in self.pending:
                number = self.streams[id(weights[0])]
                with contexts[number], _numbered(1 + number):
                    for weight, gradient in zip(weights, compute(), strict=True):
                        weight.grad = gradient if weight.grad is None else weight.grad + gradient
        self.pending.clear()


_queue: _Queue | None = None
_stream = 0


def current_stream() -> int:
    """The number of the stream on which kernels are launched now; 0 is the main one."""
    return _stream


@contextmanager
def _numbered(stream: int) -> Iterator[None]:
    global _stream
    before, _stream = _stream, stream
    try:
        yield
    finally:
        _stream = before


@cache
def _streams(device: torch.device) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(STREAMS)]


@contextmanager
def _side_streams(device: torch.device) -> Iterator[list[AbstractContextManager[object]]]:
    """Streams that start after the main one's work so far, and that it waits for at the end. A CPU has none."""
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
def deferred_weight_gradients(device: torch.device) -> Iterator[None]:
    """For a backward pass: when the block ends, all weights have their gradients."""
    global _queue
    _queue = _Queue(device)
    try:
        yield
        _queue.run()
    finally:
        _queue = None


def weight_gradients(compute: Compute, *weights: Tensor) -> tuple[Tensor | None, ...]:
    """What a layer's backward pass returns for its weights: the gradients, or None for each that is deferred."""
    if _queue is None or not all(map(_can_wait, weights)):
        return compute()
    _queue.add(compute, weights)
    return (None,) * len(weights)


def _can_wait(weight: Tensor) -> bool:
    """Whether its gradient may be set without autograd, which would call the hooks of the weight."""
    hooks = weight._backward_hooks or weight._post_accumulate_grad_hooks
    return weight.is_leaf and weight.requires_grad and not hooks
