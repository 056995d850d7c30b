"""Kernels are compiled ahead by real processes, for a GPU that is not here. They are never launched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from triton import knobs
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from fedchoir.engines.local.fused import compile_ahead as module
from fedchoir.engines.local.fused import layers
from fedchoir.engines.local.fused.compile_ahead import compile_ahead, missing_kernels
from fedchoir.engines.local.fused.compile_worker import TargetOnly
from fedchoir.engines.local.fused.kernels import norm
from fedchoir.models import build
from fedchoir.utils.input_spec import InputSpec

INPUTS, CPU = InputSpec.image(32), torch.device("cpu")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, a target in place of a GPU, and fused layers that also run on a CPU."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(layers, "INTERPRETED", True)
    monkeypatch.setattr(driver, "_active", TargetOnly("cuda", 90, 32))
    for kernel in vars(norm).values():
        if isinstance(kernel, JITFunction):
            kernel.device_caches.clear()  # what this process has loaded
    return tmp_path


def model() -> nn.Module:
    net = build("resnet10@16", 4, INPUTS).to(memory_format=torch.channels_last)
    layers.use_fused_layers(net)
    return net


def compiled(cache: Path) -> int:
    return len(list(cache.glob("*/*.cubin")))


def test_processes_compile_every_kernel_of_a_step_and_of_a_prediction(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = model()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    kernels = missing_kernels([net], INPUTS, CPU, torch.bfloat16)
    assert {name for _, name, _ in kernels} == {"moments", "normalise", "sums", "gradient"}
    assert compile_ahead([net], INPUTS, CPU, torch.bfloat16, processes=2) == len(kernels) == compiled(cache)
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())

    # A step now loads every kernel and compiles none.
    loaded: list[bool] = []
    monkeypatch.setattr(knobs.compilation, "listener", lambda **found: loaded.append(found["cache_hit"]))

    def run(self: Any, *args: Any, grid: Any, warmup: bool, run: Any = JITFunction.run, **options: Any) -> Any:
        return run(self, *args, grid=grid, warmup=True, **options)  # all but the launch

    monkeypatch.setattr(JITFunction, "run", run)
    assert missing_kernels([net], INPUTS, CPU, torch.bfloat16) == []
    assert len(loaded) == len(kernels)
    assert all(loaded)
    assert compile_ahead([net], INPUTS, CPU, torch.bfloat16, processes=2) == 0


def test_another_precision_has_other_kernels(cache: Path) -> None:
    low = missing_kernels([model()], INPUTS, CPU, torch.bfloat16)
    full = missing_kernels([model()], INPUTS, CPU, torch.float32)
    assert low
    assert full
    assert not set(low) & set(full)


def test_one_process_compiles_nothing_ahead(cache: Path) -> None:
    assert compile_ahead([model()], INPUTS, CPU, torch.float32, processes=1) == 0
    assert compiled(cache) == 0


def test_a_model_that_refuses_the_values_is_left_to_its_first_step(cache: Path) -> None:
    class Strict(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("not finite")

    assert missing_kernels([Strict()], INPUTS, CPU, torch.float32) == []
    assert knobs.runtime.jit_cache_hook is None


def test_a_kernel_that_cannot_be_compiled_is_left_out(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = missing_kernels([model()], INPUTS, CPU, torch.float32)
    broken = [(where, name, description.replace(name, "other")) for where, name, description in kernels[:1]]
    monkeypatch.setattr(module, "missing_kernels", lambda *_: [*broken, *kernels[1:]])
    assert compile_ahead([], INPUTS, CPU, torch.float32, processes=2) == len(kernels) - 1 == compiled(cache)
