"""Activation checkpointing: where a batch would exceed a memory budget, the widest blocks are recomputed.

A recomputed block stores only its input and runs forward again in the backward pass. The numbers are identical:
dropout repeats its draws, and BatchNorm updates its running statistics once. `release_memory` returns freed memory
that the C library would otherwise keep.
"""

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
from fedchoir.models import Model
from fedchoir.utils.input_spec import InputSpec

UNUSED_BYTES = 200e6  # growth of the process after which freed memory is returned

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None  # glibc has it
_STATM = Path("/proc/self/statm")
_PAGE = os.sysconf("SC_PAGE_SIZE") if os.name == "posix" else 0
_size_before = 0.0


def release_memory() -> None:
    """Return freed memory to the system if the process has grown since the last call (glibc only)."""
    global _size_before
    if _trim is None or resident_bytes() < _size_before + UNUSED_BYTES:
        return
    _trim(0)
    _size_before = resident_bytes()


def resident_bytes() -> float:
    """Resident memory of this process (Linux only, else 0)."""
    try:
        return float(_STATM.read_bytes().split()[1]) * _PAGE
    except OSError:
        return 0.0


@contextmanager
def recomputation(block: nn.Module) -> Iterator[None]:
    """The second forward pass of a block: BatchNorm does not update its statistics and counters again."""
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


def limit_activations(model: Model, inputs: InputSpec, batch: int, budget: float) -> None:
    """Recompute blocks, the most expensive first, in batches that would store more than ``budget`` bytes for the
    backward pass. Nothing changes if the largest ``batch`` fits."""
    costs = stored_bytes(model, inputs)
    left = sum(costs.values())
    for block in sorted(costs, key=lambda b: -costs[b]):
        if left * batch <= budget:
            return
        recompute_above(block, int(budget // left))
        left -= costs[block]


def blocks(*modules: nn.Module) -> Iterator[nn.Module]:
    """The sequential blocks of modules. In-place layers are skipped: their input no longer exists."""
    for module in modules:
        if type(module) is nn.Sequential:
            yield from blocks(*module)
        elif not getattr(module, "inplace", False):
            yield module


def stored_bytes(model: Model, inputs: InputSpec, samples: int = 2) -> dict[nn.Module, float]:
    """Bytes per image that every block stores for its backward pass, measured in one small pass."""
    stored: dict[nn.Module, dict[int, int]] = {block: {} for block in blocks(*model.recomputable())}
    parameters = {p.data_ptr() for p in model.parameters()}
    current: list[nn.Module] = []

    def pack(t: Tensor) -> Tensor:
        if current and t.data_ptr() not in parameters:
            stored[current[-1]][t.data_ptr()] = t.numel() * t.element_size()
        return t

    hooks = [block.register_forward_pre_hook(lambda m, _: current.append(m)) for block in stored]
    hooks += [block.register_forward_hook(lambda *_: current.clear()) for block in stored]
    was_training, device = model.training, next(model.parameters()).device
    with (
        torch.random.fork_rng(),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t),
        frozen_batchnorm_stats(model),
    ):
        result = model.train().features(inputs.example(samples).to(device))
    del result  # until here: the address of a freed tensor may be reused and would count once
    model.train(was_training)
    for hook in hooks:
        hook.remove()
    return {block: sum(seen.values()) / samples for block, seen in stored.items()}


def recompute_above(block: nn.Module, images: int) -> None:
    """Make ``block`` store only its input in training batches of more than ``images`` images."""
    block.recompute_above = images  # type: ignore[assignment]
    if not isinstance(block, _Recomputed):
        kind = type(block)
        # A dynamic subclass leaves the names of the weights and copies of the block unchanged.
        block.__class__ = type(f"Recomputed{kind.__name__}", (_Recomputed, kind), {})


class _Recomputed(nn.Module):
    recompute_above: int

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and torch.is_grad_enabled() and len(x) > self.recompute_above):
            return super().forward(x)
        contexts = lambda: (nullcontext(), recomputation(self))  # noqa: E731
        return checkpoint(super().forward, x, use_reentrant=False, context_fn=contexts)
