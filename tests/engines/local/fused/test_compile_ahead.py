"""Kernels are compiled ahead by real processes, for a GPU that is not here. They are never launched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

import pytest
import torch
from filelock import FileLock
from torch import nn
from triton import knobs
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from fedchoir import Experiment
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.engines.local.fused import compile_ahead as module
from fedchoir.engines.local.fused import layers
from fedchoir.engines.local.fused.compile_ahead import Kernel, compile_ahead, missing_kernels, unrolled
from fedchoir.engines.local.fused.compile_worker import TargetOnly
from fedchoir.engines.local.fused.kernels import norm
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.prepare import prepare
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


def model(name: str = "resnet10@16") -> nn.Module:
    net = build(name, 4, INPUTS).to(memory_format=torch.channels_last)
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


WORKER = """
import json, sys
from fedchoir.engines.local.fused.compile_worker import serve

class Parent:
    requests = [[part.encode() for part in request] for request in json.loads(sys.argv[1])]

    def receive(self):
        if not self.requests:
            sys.exit("torch" in sys.modules)
        return self.requests.pop(0)

    def send(self, answer):
        print(*answer)

serve(Parent())
"""


def test_a_worker_compiles_without_torch(cache: Path) -> None:
    """Its import would take most of the worker's start."""
    kernels = missing_kernels([model("efficientnet_b0@0.25")], INPUTS, CPU, torch.bfloat16)
    one_of_each = list({where: (where, *rest) for where, *rest in kernels}.values())
    assert {where.rpartition(".")[2] for where, *_ in one_of_each} == {"norm", "depthwise", "squeeze_excite"}
    requests = json.dumps([[json.dumps(["cuda", 90, 32])], *one_of_each])
    done = subprocess.run([sys.executable, "-c", WORKER, requests], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "b'compiled'\n" * 3), done.stdout + done.stderr


@pytest.fixture
def queues(monkeypatch: pytest.MonkeyPatch) -> list[list[Kernel]]:
    """What each process finds in the queue, in place of compiling it."""
    found: list[list[Kernel]] = []

    def work_off(queue: module.Queue, target: object) -> int:
        found.append([queue.get()[0] for _ in range(queue.qsize())])
        return 0

    monkeypatch.setattr(module, "_work_off", work_off)
    return found


def test_convolutions_that_take_long_to_compile_come_first(cache: Path, queues: list[list[Kernel]]) -> None:
    compile_ahead([model("efficientnet_b0@0.25")], INPUTS, CPU, torch.bfloat16, processes=2)
    costs = [(name, unrolled((where, name, description))) for where, name, description in queues[0]]
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
        module, "compile_ahead", lambda models, inputs, device, dtype, processes: asked.append(processes)
    )
    method, scenario, _ = prepare(make_plan(small("fedavg")))
    LocalEngine(method, scenario, None, device=CPU, fused=True)
    assert asked == [16]


HOLDER = """
import sys, time, filelock
with filelock.FileLock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("finished", [True, False])
def test_a_kernel_that_another_process_compiles_is_waited_for(cache: Path, finished: bool) -> None:
    """It is not compiled twice, unless the other process is killed before it has finished."""
    kernels = missing_kernels([model()], INPUTS, CPU, torch.float32)
    mark = module._mark(kernels[0])
    mark.parent.mkdir()
    holder = [sys.executable, "-c", HOLDER, str(mark.with_suffix(".lock"))]
    with subprocess.Popen(holder, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        assert other.stdout.readline() == "held\n"

        def end() -> None:
            while compiled(cache) < len(kernels) - 1:
                sleep(0.05)
            sleep(0.5)
            if finished:
                mark.touch()
            other.kill()

        ending = Thread(target=end)
        ending.start()
        count = compile_ahead([model()], INPUTS, CPU, torch.float32, processes=2)
        ending.join()
    assert count == compiled(cache) == len(kernels) - finished


def test_a_kernel_that_never_gets_finished_elsewhere_is_left_to_its_first_launch(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WAIT", 0.2)
    kernels = missing_kernels([model()], INPUTS, CPU, torch.float32)
    mark = module._mark(kernels[0])
    mark.parent.mkdir()
    with FileLock(mark.with_suffix(".lock")):
        assert compile_ahead([model()], INPUTS, CPU, torch.float32, processes=2) == len(kernels) - 1 == compiled(cache)
