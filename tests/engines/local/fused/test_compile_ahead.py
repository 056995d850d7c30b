"""Kernels are compiled ahead by real processes, for a GPU that is not here. They are never launched."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from threading import Thread, main_thread
from time import sleep
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from filelock import FileLock
from torch import nn
from torchvision.models.resnet import BasicBlock
from triton import knobs
from triton.backends.nvidia import driver as nvidia
from triton.runtime.cache import get_cache_manager
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
    one_of_each = [kernel[:3] for kernel in {kernel.module: kernel for kernel in kernels}.values()]
    assert {where.rpartition(".")[2] for where, *_ in one_of_each} == {"norm", "depthwise", "squeeze_excite"}
    requests = json.dumps([[json.dumps(["cuda", 90, 32])], *one_of_each])
    done = subprocess.run([sys.executable, "-c", WORKER, requests], capture_output=True, text=True, timeout=300)
    assert re.fullmatch("(b'[0-9a-f]{64}' b''\n){3}", done.stdout), done.stdout + done.stderr  # keys, and no errors
    assert done.returncode == 0


LIBCUDA = """
#define F(name) int name(void) { return 0; }
F(cuGetErrorString) F(cuFuncSetAttribute) F(cuPointerGetAttribute) F(cuCtxGetCurrent)
F(cuDeviceGet) F(cuDevicePrimaryCtxRetain) F(cuCtxSetCurrent)
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_a_worker_compiles_what_launches_a_kernel(
    cache: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a library in place of the driver's, Triton builds what a first launch would, and finds it there."""
    folder = tmp_path_factory.mktemp("libcuda")
    (folder / "cuda.c").write_text(LIBCUDA)
    library = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", "libcuda.so.1", "cuda.c"]
    subprocess.run(["gcc", *library], cwd=folder, check=True)
    monkeypatch.setenv("TRITON_LIBCUDA_PATH", str(folder))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))  # of the worker
    kernel = missing_kernels([model()], INPUTS, CPU, torch.float32)[0]
    requests = json.dumps([[json.dumps(["cuda", 90, 32])], kernel[:3]])
    done = subprocess.run([sys.executable, "-c", WORKER, requests], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr  # it still has no torch
    assert len(list(cache.glob("*/__triton_launcher*.so"))) == 1

    class Found(Exception):
        pass

    def load(name: str, path: str) -> None:
        raise Found

    monkeypatch.setattr("triton.runtime.build._load_module_from_path", load)
    monkeypatch.setattr("triton.runtime.build._build", lambda *_: pytest.fail("it was not in the cache"))
    monkeypatch.setattr(nvidia, "library_dirs", lambda: [str(folder)])
    ready = getattr(import_module(kernel.module), kernel.name).preload(kernel.description)
    with pytest.raises(Found):
        nvidia.CudaLauncher(ready.src, ready.metadata)


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
                pretend_compiled(kernels[0])
            other.kill()

        ending = Thread(target=end)
        ending.start()
        notes = compile_ahead([model()], INPUTS, CPU, torch.float32, processes=2)
        ending.join()
    assert notes == []
    assert compiled(cache) == len(kernels) - finished


def pretend_compiled(kernel: Kernel) -> None:
    """What is on disk after another process has compiled it, without the binary."""
    key = "0" * 64
    group = get_cache_manager(key)
    group.put_group(f"{kernel.name}.json", {f"{kernel.name}.json": group.put("{}", f"{kernel.name}.json")})
    module._mark(kernel).write_text(key)


def test_a_kernel_that_never_gets_finished_elsewhere_is_left_to_its_first_launch(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WAIT", 0.2)
    kernels = missing_kernels([model()], INPUTS, CPU, torch.float32)
    mark = module._mark(kernels[0])
    mark.parent.mkdir()
    with FileLock(mark.with_suffix(".lock")):
        (note,) = compile_ahead([model()], INPUTS, CPU, torch.float32, processes=2)
    assert f"({kernels[0].name}: another process did not compile it within 0.2 s)" in note
    assert compiled(cache) == len(kernels) - 1


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


@pytest.mark.parametrize("error", [NotImplementedError("no flock"), OSError(errno.ENOSYS, "no flock")])
def test_a_file_system_without_locks_leaves_kernels_to_their_first_launch(
    error: Exception, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first error is that of filelock before 3.25."""

    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(FileLock, "acquire", refuse)
    (note,) = compile_ahead([model()], INPUTS, CPU, torch.float32, processes=2)
    assert "no flock" in note
    assert compiled(cache) == 0
