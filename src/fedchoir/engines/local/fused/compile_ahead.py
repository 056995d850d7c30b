"""Compiles the kernels that models need before their first step, in several processes at once.

Most of a compilation is Python that holds the interpreter's lock, so threads do not help. Models run once on random
inputs. Kernels that are not in the cache are written down in that pass and not launched; its outputs mean nothing.
Worker processes compile them into the cache on disk, from where Triton loads them when they are first launched. Workers
do not import torch, so they start quickly. Of several engine processes on a machine only one compiles a kernel.
"""

# mypy: disable-error-code="import-untyped"

import hashlib
import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from fedchoir.utils.errors import WorkerError
from fedchoir.utils.input_spec import InputSpec
from fedchoir.utils.subprocess_channel import ChildProcess

BATCH = 4  # images of the pass; kernels do not depend on their number
PER_WORKER = 2  # kernels that pay for the start of another process
MAX_WAIT = 60.0  # seconds for a kernel that another process compiles; it takes about three

Kernel = tuple[str, str, str]
"""Module and name of a kernel's function, and Triton's description of one of its variants (JSON)."""
Queue = SimpleQueue[tuple[Kernel, float]]
"""Kernels to compile, and how many seconds to wait for one if another process compiles it."""


def compile_ahead(
    models: Iterable[nn.Module], inputs: InputSpec, device: torch.device, dtype: torch.dtype, processes: int
) -> int:
    """Compile what the models need for a training step and for a prediction. Returns the number of kernels compiled.

    ``dtype``: that of autocast, or float32. ``processes``: how many may compile. A kernel that cannot be compiled here
    is left to its first launch, which then reports why.
    """
    kernels = sorted(missing_kernels(models, inputs, device, dtype), key=unrolled, reverse=True)
    count = min(processes, len(kernels) // PER_WORKER)
    if count < 2:
        return 0  # the first launches compile them
    queue: Queue = SimpleQueue()
    for kernel in kernels:
        queue.put((kernel, 0.0))
    _mark(kernels[0]).parent.mkdir(parents=True, exist_ok=True)
    target = driver.active.get_current_target()
    with ThreadPoolExecutor(count) as pool:  # each thread waits for one process
        return sum(pool.map(lambda _: _work_off(queue, target), range(count)))


def missing_kernels(
    models: Iterable[nn.Module], inputs: InputSpec, device: torch.device, dtype: torch.dtype
) -> list[Kernel]:
    """The kernels of one training step and one prediction of each model that are not in the cache on disk."""
    with _recorded() as kernels, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for model in models:
            with suppress(Exception):  # a model that refuses meaningless values: its kernels are compiled later
                _step_and_predict(deepcopy(model), inputs.example(BATCH), device, dtype)
    return list(kernels)


def unrolled(kernel: Kernel) -> int:
    """How many multiplications of a convolution the compiler writes out: the more, the longer it takes.

    The slowest kernels are compiled first. A slow one that came last would keep one process busy and the others idle.
    """
    description = json.loads(kernel[2])
    names = list(description["signature"])
    constants = {
        names[k]: v for (k, *_), v in zip(description["constant_keys"], description["constant_vals"], strict=True)
    }
    size = constants.get("K", 0)
    return int(size * constants.get("TAP_ROWS", size) * constants.get("G", 0))


def _step_and_predict(model: nn.Module, x: Tensor, device: torch.device, dtype: torch.dtype) -> None:
    x = x.to(device, memory_format=torch.channels_last)
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        model.train()(x).float().sum().backward()
        with torch.no_grad():
            model.eval()(x)


@contextmanager
def _recorded() -> Iterator[dict[Kernel, None]]:
    """Kernels that would be compiled are written down and not launched; those in the cache are loaded as usual.

    Triton calls the hook before it compiles or loads a kernel, and does neither, nor launches it, if that returns True.
    """
    found: dict[Kernel, None] = {}

    def hook(*, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        kernel = fn.module, fn.name, compile["specialization_data"]
        if _mark(kernel).exists():
            return False
        found[kernel] = None
        return True

    before, knobs.runtime.jit_cache_hook = knobs.runtime.jit_cache_hook, hook
    try:
        yield found
    finally:
        knobs.runtime.jit_cache_hook = before


def _mark(kernel: Kernel) -> Path:
    """The file that marks a kernel as compiled into the cache. Triton itself decides whether it is still there."""
    return Path(knobs.cache.dir) / "compiled-ahead" / hashlib.sha256("\0".join(kernel).encode()).hexdigest()


def _work_off(queue: Queue, target: GPUTarget) -> int:
    """Let one process compile kernels until none is left. Returns how many it compiled.

    Other engine processes see by a lock that a kernel is being compiled. They put it last and then wait for it. If the
    holder of a lock is killed, the lock is free.
    """
    done = 0
    worker = ChildProcess.spawn(
        "a process that compiles kernels",
        "fedchoir.engines.local.fused.compile_worker",
        {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
    )
    try:
        worker.send([json.dumps([target.backend, target.arch, target.warp_size]).encode()])
        while True:
            kernel, wait = queue.get_nowait()
            mark = _mark(kernel)
            try:
                with FileLock(mark.with_suffix(".lock"), timeout=wait):
                    if not mark.exists() and _compiled(kernel, worker):
                        mark.touch()
                        done += 1
            except Timeout:
                if not wait:
                    queue.put((kernel, MAX_WAIT))
    except (Empty, WorkerError, OSError):  # OSError: a file system without locks
        return done
    finally:
        worker.close()


def _compiled(kernel: Kernel, worker: ChildProcess) -> bool:
    worker.send([part.encode() for part in kernel])
    return worker.receive() == [b"compiled"]
