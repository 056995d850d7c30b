"""Training passes whose layers are fused (``--compile``), for GPUs.

At 32×32 a step of EfficientNet or MobileNet is a thousand small kernels, and BatchNorm and activations each go
through all of memory. torch.compile makes few of many, small ones that do not depend on each other (a cast of each
weight, a count of each BatchNorm) become one, and layers that cuDNN is slow at are computed in other ways. Compiling
takes minutes where its cache is empty: only the passes that there are many of are compiled, those of whole batches
of private images; for the rest the model is called as ever.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedchoir.errors import UsageError
from fedchoir.federation.client import Client
from fedchoir.models import VisionModel

Pass = Callable[[Tensor], tuple[Tensor, Tensor]]
Compiler = Callable[[Pass], Pass]

WORTH = 100  # whole batches that a client learns from in a round; below, compiling costs more than it gains


def compile_pass(both: Pass) -> Pass:
    """Fuse a pass with torch.compile, for the shapes it is called with."""
    return torch.compile(both, dynamic=False, options={"combo_kernels": True})


class FusedPass:
    """Features and logits of a batch: fused where the model learns from a whole batch, plain elsewhere."""

    def __init__(self, model: VisionModel, batch: int, compiler: Compiler = compile_pass) -> None:
        self._model, self._batch = model, batch
        self._fused = compiler(model.both)

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        learning = self._model.training and torch.is_grad_enabled()
        return (self._fused if learning and len(images) == self._batch else self._model.both)(images)


def fuse(client: Client, compiler: Compiler = compile_pass) -> None:
    """Let a client's training passes be fused, if it makes enough of them."""
    settings = client.settings
    full = len(client.private) // settings.local_batch * settings.epochs_of(client.index)
    if full >= WORTH:
        from fedchoir.engines.lean import use_lean_layers

        use_lean_layers(client.model)
        client.fused = FusedPass(client.model, settings.local_batch, compiler)


def check_fusing(devices: Sequence[torch.device], params: Any) -> None:
    """Say in one line why ``--compile`` is not possible, if it is not."""
    if any(device.type != "cuda" for device in devices):
        raise UsageError("--compile is not possible: it is for GPUs, and gains nothing on a CPU; leave it out")
    if params.dp_noise:
        raise UsageError("--compile is not possible with dp_noise: gradients of single images are taken in another way")
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        raise UsageError("--compile is not possible: it needs a C compiler, such as gcc")
