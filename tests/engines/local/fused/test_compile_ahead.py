"""Kernels are compiled ahead by real processes, for a GPU that is not here. They are never launched."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from threading import main_thread
from time import sleep
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.engines.local.fused.compile_checks import CPU, INPUTS, compiled, model
from torch import nn
from torchvision.models.resnet import BasicBlock
from triton import knobs
from triton.runtime.jit import JITFunction

from fedchoir import Experiment
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.engines.local.fused import compile_ahead as module
from fedchoir.engines.local.fused import layers
from fedchoir.engines.local.fused.compile_ahead import Kernel, compile_ahead, missing_kernels, unrolled
from fedchoir.engines.local.fused.kernels import norm
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.prepare import prepare
from fedchoir.models import build
from fedchoir.utils.input_spec import InputSpec


def test_processes_compile_every_kernel_of_a_step_and_of_a_prediction(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = model()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    kernels = missing_kernels([net], INPUTS, CPU, torch.bfloat16)
    assert {kernel.name for kernel in kernels} == {"moments", "normalise", "sums", "gradient"}
    assert compile_ahead([net], INPUTS, CPU, torch.bfloat16, processes=2) == []
    assert compiled(cache) == len(kernels)
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


def test_another_precision_has_other_kernels(cache: Path) -> None:
    low = missing_kernels([model()], INPUTS, CPU, torch.bfloat16)
    full = missing_kernels([model()], INPUTS, CPU, torch.float32)
    assert low
    assert full
    assert not set(low) & set(full)


def test_one_process_compiles_nothing_ahead(cache: Path) -> None:
    assert compile_ahead([model()], INPUTS, CPU, torch.float32, processes=1) == []
    assert compiled(cache) == 0


def test_a_model_that_refuses_the_values_is_left_to_its_first_step(cache: Path) -> None:
    class Strict(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("not finite")

    notes = compile_ahead([Strict(), model()], INPUTS, CPU, torch.float32, processes=2)
    assert notes == ["model Strict: its kernels are not compiled ahead (ValueError: not finite)"]
    assert compiled(cache) == 9  # those of the other model
    assert knobs.runtime.jit_cache_hook is None


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("mlp", InputSpec("table", (12,))),
        ("cnn1d", InputSpec("series", (3, 32))),
        ("bag_of_embeddings", InputSpec("text", (16,), vocabulary=50)),
    ],
)
def test_a_model_of_other_inputs_than_images_has_nothing_to_compile(name: str, inputs: InputSpec, cache: Path) -> None:
    net = build(name, 4, inputs)
    layers.use_fused_layers(net)
    assert compile_ahead([net], inputs, CPU, torch.bfloat16, processes=2) == []
    assert compiled(cache) == 0


def test_kernels_of_others_are_launched() -> None:
    with module._recorded() as found:
        other = SimpleNamespace(module="my_models", name="scale")
        assert knobs.runtime.jit_cache_hook(fn=other, compile={"specialization_data": "{}"}) is False
    assert found == {}


def test_a_kernel_that_cannot_be_compiled_is_left_out(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = missing_kernels([model()], INPUTS, CPU, torch.float32)
    name, description = kernels[0].name, kernels[0].description
    broken = kernels[0]._replace(description=description.replace(name, "other"))
    monkeypatch.setattr(module, "missing_kernels", lambda *_: [broken, *kernels[1:]])
    (note,) = compile_ahead([], INPUTS, CPU, torch.float32, processes=2)
    assert note.startswith(f"1 of {len(kernels)} kernels were not compiled ahead")
    assert f"({name}: RuntimeError: Specialization data is for " in note
    assert compiled(cache) == len(kernels) - 1


def test_who_stops_a_run_does_not_wait_for_all_kernels(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Kernel] = []

    def compile_one(kernel: Kernel, *_: object) -> None:
        begun.append(kernel)
        if len(begun) == 1:
            signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)
        sleep(0.5)

    monkeypatch.setattr(module, "_compile", compile_one)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            compile_ahead([model()], INPUTS, CPU, torch.float32, processes=2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert 1 <= len(begun) <= 3  # of nine


@pytest.fixture
def queues(monkeypatch: pytest.MonkeyPatch) -> list[list[Kernel]]:
    """What each process finds in the queue, in place of compiling it."""
    found: list[list[Kernel]] = []

    def work_off(queue: module.Queue, *_: object) -> None:
        found.append([queue.get()[0] for _ in range(queue.qsize())])

    monkeypatch.setattr(module, "_work_off", work_off)
    return found


def test_convolutions_that_take_long_to_compile_come_first(cache: Path, queues: list[list[Kernel]]) -> None:
    compile_ahead([model("efficientnet_b0@0.25")], INPUTS, CPU, torch.bfloat16, processes=2)
    costs = [(kernel.name, unrolled(kernel)) for kernel in queues[0]]
    assert costs[0] == ("forward", 5 * 5 * 8)
    assert [cost for _, cost in costs] == sorted((cost for _, cost in costs), reverse=True)
    assert {name for name, cost in costs if cost} == {"forward", "input_gradient", "weight_gradient"}


@pytest.mark.parametrize(("allowed", "started"), [(3, 3), (100, 4)])
def test_there_are_as_many_processes_as_cores_if_each_has_two_kernels(
    cache: Path, queues: list[list[Kernel]], allowed: int, started: int
) -> None:
    compile_ahead([model()], INPUTS, CPU, torch.float32, allowed)
    assert len(queues) == started
    assert len(queues[0]) == 9


def test_the_threads_of_an_engine_process_do_not_limit_how_many_processes_compile(
    monkeypatch: pytest.MonkeyPatch, small: Callable[..., Experiment]
) -> None:
    asked: list[int] = []
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)))
    monkeypatch.setattr(
        module, "compile_ahead", lambda models, inputs, device, dtype, processes: asked.append(processes) or ["a note"]
    )
    method, scenario, _ = prepare(make_plan(small("fedavg")))
    engine = LocalEngine(method, scenario, None, device=CPU, fused=True)
    assert asked == [16]
    assert "a note" in engine.notes


def test_a_model_computes_with_no_memory_that_nobody_has_written(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU an index from it would end all work of the process. Here such memory is filled with NaN."""
    seen: list[torch.Tensor] = []

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())
            self.block = BasicBlock(8, 8)
            self.head = nn.Linear(8, 4)
            nn.init.constant_(self.conv[1].bias, 1.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.block(self.conv.forward(x))  # also without what a call of the module adds
            seen.append(h)
            if h.requires_grad:
                h.register_hook(seen.append)
            return self.head(h.mean((-2, -1)))

    plain = Own()
    net = deepcopy(plain)
    layers.use_fused_layers(net)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)
    try:
        kernels = missing_kernels([net], INPUTS, CPU, torch.float32)
        assert torch.empty(1).isnan()
    finally:
        torch.use_deterministic_algorithms(False)
    assert {kernel.name for kernel in kernels} == {"moments", "normalise", "sums", "gradient"}
    found, seen[:] = list(seen), []
    x = INPUTS.example(module.BATCH).to(memory_format=torch.channels_last)
    plain.train()(x)
    plain.eval()(x)
    assert len(found) == len(seen) == 2
    assert all(map(torch.allclose, found, seen))


@pytest.mark.parametrize("part", ["source", "Triton", "cache"])
def test_a_kernel_of_another_source_or_version_or_one_that_was_deleted_is_missing(
    part: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = missing_kernels([model()], INPUTS, CPU, torch.float32)
    assert compile_ahead([model()], INPUTS, CPU, torch.float32, processes=2) == []
    for function in (f for f in vars(norm).values() if isinstance(f, JITFunction)):
        function.device_caches.clear()
    if part == "source":
        monkeypatch.setattr(norm.moments, "hash", "another")
    elif part == "Triton":
        monkeypatch.setattr("triton.__version__", "99")
    else:
        for binary in cache.glob("*/moments.cubin"):
            shutil.rmtree(binary.parent)
    for kernel in kernels:
        assert module._is_cached(kernel) is (part == "source" or (part == "cache" and kernel.name != "moments"))
    if part == "source":
        changed = missing_kernels([model()], INPUTS, CPU, torch.float32)
        assert changed
        assert not set(changed) & set(kernels)


def test_a_system_without_more_processes_leaves_kernels_to_their_first_launch(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    (note,) = compile_ahead([model()], INPUTS, CPU, torch.float32, processes=2)
    assert note.startswith("9 of 9 kernels were not compiled ahead")
    assert "Resource temporarily unavailable" in note
    assert compiled(cache) == 0
