"""Memory for the backward pass: where a batch would need more than a budget, the widest blocks are computed twice.

A block that is recomputed keeps its input alone and runs forward again when its gradient is due. The numbers are the
same: dropout draws what it drew before, and BatchNorm's running statistics move once.

And memory that nobody uses: the C library keeps what was freed, in pieces, so that a process would stay as large as
all its clients' passes put together. `give_back` returns it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from fedchoir.core.teachers import frozen_batchnorm_stats
from fedchoir.models import VisionModel

UNUSED_BYTES = 200e6  # by how much the process may have grown before freed memory is returned

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None  # glibc has it
_STATM = Path("/proc/self/statm")
_PAGE = os.sysconf("SC_PAGE_SIZE") if os.name == "posix" else 0
_size_before = 0.0


def release_memory() -> None:
    """Return freed memory to the system, if the process has grown since the last time. Nothing where it cannot be."""
    global _size_before
    if _trim is None or resident_bytes() < _size_before + UNUSED_BYTES:
        return
    _trim(0)
    _size_before = resident_bytes()


def resident_bytes() -> float:
    """Memory that this process takes up now (Linux; elsewhere 0)."""
    try:
        return float(_STATM.read_bytes().split()[1]) * _PAGE
    except OSError:
        return 0.0


@contextmanager
def second_time(block: nn.Module) -> Iterator[None]:
    """The same pass over again: BatchNorm saves the same tensors, but its statistics and counters stay.

    A wide block is about to take its memory again, and the later, narrow ones have just freed theirs."""
    release_memory()
    norms = [m for m in block.modules() if isinstance(m, _BatchNorm)]
    before = [(m.momentum, m._buffers.get("num_batches_tracked")) for m in norms]
    for m in norms:
        m.momentum = 0.0
        m._buffers["num_batches_tracked"] = None
    try:
        yield
    finally:
        for m, (momentum, counter) in zip(norms, before, strict=True):
            m.momentum = momentum
            m._buffers["num_batches_tracked"] = counter


def limit_activations(model: VisionModel, image_size: int, batch: int, budget: float) -> None:
    """Let blocks of ``model`` be recomputed, the most expensive first, in batches that would keep over ``budget`` bytes
    for the backward pass. Nothing changes where the largest ``batch`` fits anyway."""
    costs = kept_bytes(model, image_size)
    left = sum(costs.values())
    for block in sorted(costs, key=lambda b: -costs[b]):
        if left * batch <= budget:
            return
        recompute_above(block, int(budget // left))
        left -= costs[block]


def blocks(trunk: nn.Module) -> Iterator[nn.Module]:
    """The parts of a trunk that come one after the other: residual blocks, Inception modules, single layers. A layer
    that works in place is none: what it would be computed from again is gone."""
    if type(trunk) is nn.Sequential:
        for child in trunk:
            yield from blocks(child)
    elif not getattr(trunk, "inplace", False):
        yield trunk


def kept_bytes(model: VisionModel, image_size: int, images: int = 2) -> dict[nn.Module, float]:
    """Bytes for each image that every block of the trunk keeps for its backward pass, from one small pass."""
    kept: dict[nn.Module, dict[int, int]] = {block: {} for block in blocks(model.trunk)}
    parameters = {p.data_ptr() for p in model.parameters()}
    current: list[nn.Module] = []

    def pack(t: Tensor) -> Tensor:
        if current and t.data_ptr() not in parameters:
            kept[current[-1]][t.data_ptr()] = t.numel() * t.element_size()
        return t

    hooks = [block.register_forward_pre_hook(lambda m, _: current.append(m)) for block in kept]
    hooks += [block.register_forward_hook(lambda *_: current.clear()) for block in kept]
    was_training, device = model.training, next(model.parameters()).device
    with (
        torch.random.fork_rng(),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t),
        frozen_batchnorm_stats(model),
    ):
        result = model.train().trunk(torch.zeros(images, 3, image_size, image_size, device=device))
    del result  # held until here: a freed tensor's address may be used again and would count once
    model.train(was_training)
    for hook in hooks:
        hook.remove()
    return {block: sum(seen.values()) / images for block, seen in kept.items()}


def recompute_above(block: nn.Module, images: int) -> None:
    """Make ``block`` keep only its input in training batches of more than ``images`` images."""
    block.recompute_above = images  # type: ignore[assignment]
    if not isinstance(block, _Recomputed):
        kind = type(block)
        # A subclass made on the spot: names of weights, copies and pickles of the block's tensors stay as they are.
        block.__class__ = type(f"Recomputed{kind.__name__}", (_Recomputed, kind), {})


class _Recomputed(nn.Module):
    recompute_above: int

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and torch.is_grad_enabled() and len(x) > self.recompute_above):
            return super().forward(x)
        contexts = lambda: (nullcontext(), second_time(self))  # noqa: E731
        return checkpoint(super().forward, x, use_reentrant=False, context_fn=contexts)
