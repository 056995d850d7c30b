"""Compiles the kernels that models need before their first step, in several processes at once.

Most of a compilation is Python that holds the interpreter's lock, so threads do not help. Models run once on an example
input. Kernels that are not in the cache are written down in that pass and not launched. What a fused layer then returns
is memory that nobody has written, so only torch's own layers compute what the rest of the model goes on with. Worker
processes compile the kernels into the cache on disk, from where Triton loads them when they are first launched. Workers
do not import torch, so they start quickly. Of several engine processes on a machine only one compiles a kernel.
"""

# mypy: disable-error-code="import-untyped"

import hashlib
import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import torch
import triton
from filelock import FileLock, Timeout
from torch import Tensor, nn
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.cache import get_cache_manager
from triton.runtime.driver import driver

from fedchoir.engines.local.fused.layers import FUSED
from fedchoir.utils.input_spec import InputSpec
from fedchoir.utils.subprocess_channel import ChildProcess

BATCH = 4  # images of the pass; kernels do not depend on their number
PER_WORKER = 2  # kernels that pay for the start of another process
KERNELS = "fedchoir.engines.local.fused.kernels."  # a model may have kernels of others, which are launched as usual
MAX_WAIT = 60.0  # seconds for a kernel that another process compiles; it takes about three


class Kernel(NamedTuple):
    """A variant of a kernel."""

    module: str
    name: str  # of the function
    description: str  # Triton's, of the variant (JSON)
    source: str  # a hash of the function and of those that it calls


Queue = SimpleQueue[tuple[Kernel, float]]
"""Kernels to compile, and how many seconds to wait for one if another process compiles it."""


def compile_ahead(
    models: Iterable[nn.Module], inputs: InputSpec, device: torch.device, dtype: torch.dtype, processes: int
) -> list[str]:
    """Compile what the models need for a training step and for a prediction. Returns notes on what was not compiled.

    ``dtype``: that of autocast, or float32. ``processes``: how many may compile. Whatever fails here is left to the
    first launches, which compile too and report what is wrong.
    """
    notes: list[str] = []
    kernels = sorted(missing_kernels(models, inputs, device, dtype, notes), key=unrolled, reverse=True)
    count = min(processes, len(kernels) // PER_WORKER)
    if count < 2:
        return notes  # the first launches compile them
    queue: Queue = SimpleQueue()
    for kernel in kernels:
        queue.put((kernel, 0.0))
    target, reasons = driver.active.get_current_target(), list[str]()
    try:
        _mark(kernels[0]).parent.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(count) as pool:  # each thread waits for one process
            try:
                list(pool.map(lambda _: _work_off(queue, target, reasons), range(count)))
            except (KeyboardInterrupt, SystemExit):  # the pool waits for its threads: they find nothing more to do
                _empty(queue)
                raise
    except (OSError, RuntimeError) as error:  # the disk is full, or the system has no more threads
        reasons.append(_line(error))
    if left := sum(not _is_cached(kernel) for kernel in kernels):
        start = f"{left} of {len(kernels)} kernels were not compiled ahead, but are when they are first launched"
        notes.append(f"{start} ({next(iter(reasons), 'no reason given')})")
    return notes


def missing_kernels(
    models: Iterable[nn.Module],
    inputs: InputSpec,
    device: torch.device,
    dtype: torch.dtype,
    notes: list[str] | None = None,
) -> list[Kernel]:
    """The kernels of one training step and one prediction of each model that are not in the cache on disk.

    ``notes``: a line is added for each model that could not be run.
    """
    with _recorded() as kernels, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for model in models:
            try:
                _train_and_predict(deepcopy(model), inputs.example(BATCH), device, dtype)
            except Exception as error:  # whatever a user's model raises: its kernels are compiled later
                if notes is not None:
                    name = getattr(model, "name", type(model).__name__)
                    notes.append(f"model {name}: its kernels are not compiled ahead ({_line(error)})")
    return list(kernels)


def unrolled(kernel: Kernel) -> int:
    """How many multiplications of a convolution the compiler writes out: the more, the longer it takes.

    The slowest kernels are compiled first. A slow one that came last would keep one process busy and the others idle.
    """
    description = json.loads(kernel.description)
    names = list(description["signature"])
    constants = {
        names[k]: v for (k, *_), v in zip(description["constant_keys"], description["constant_vals"], strict=True)
    }
    size = constants.get("K", 0)
    return int(size * constants.get("TAP_ROWS", size) * constants.get("G", 0))


def _train_and_predict(model: nn.Module, x: Tensor, device: torch.device, dtype: torch.dtype) -> None:
    for layer in model.modules():
        if type(layer) in FUSED.values():
            vars(layer)["forward"] = partial(_run_apart, layer)
    x = x.to(device)
    if x.ndim == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        model.train()(x)
        with torch.no_grad():
            model.eval()(x)


def _run_apart(layer: Any, x: Tensor) -> Tensor:
    """Run a copy of a fused layer and its backward pass, and return what torch's own layer computes.

    On a GPU an index that is out of range ends all work of the process, and no exception handler helps. So the model
    gets no values of fused layers: no outputs, no gradients, and no running statistics.
    """
    fused: Any = type(layer)
    y = fused.forward(apart := deepcopy(layer), inputs := x.detach().requires_grad_(x.requires_grad))
    if y.requires_grad:
        torch.autograd.grad(y.float().sum(), [t for t in (inputs, *apart.parameters()) if t.requires_grad])
    plain: Tensor = fused.__base__.forward(layer, x)
    return plain


@contextmanager
def _recorded() -> Iterator[dict[Kernel, None]]:
    """Our kernels that would be compiled are written down and not launched; those in the cache are loaded as usual.

    Triton calls the hook before it compiles or loads a kernel, and does neither, nor launches it, if that returns True.
    """
    found: dict[Kernel, None] = {}

    def hook(*, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        if not fn.module.startswith(KERNELS):
            return False
        kernel = Kernel(fn.module, fn.name, compile["specialization_data"], fn.jit_function.cache_key)
        if _is_cached(kernel):
            return False
        found[kernel] = None
        return True

    before, knobs.runtime.jit_cache_hook = knobs.runtime.jit_cache_hook, hook
    try:
        yield found
    finally:
        knobs.runtime.jit_cache_hook = before


def _mark(kernel: Kernel) -> Path:
    """The file that marks a kernel as compiled. It has Triton's key of what was compiled."""
    text = "\0".join((triton.__version__, *kernel))
    return Path(knobs.cache.dir) / "compiled-ahead" / hashlib.sha256(text.encode()).hexdigest()


def _is_cached(kernel: Kernel) -> bool:
    """Whether it was compiled ahead, and nobody has deleted it from Triton's cache since."""
    try:
        key = _mark(kernel).read_text()
    except OSError:
        return False
    return bool(get_cache_manager(key).get_group(f"{kernel.name}.json"))


def _empty(queue: Queue) -> None:
    with suppress(Empty):
        while True:
            queue.get_nowait()


def _work_off(queue: Queue, target: GPUTarget, reasons: list[str]) -> None:
    """Let one process compile kernels until none is left, and add the reasons why some were not.

    Other engine processes see by a lock that a kernel is being compiled. They put it last and then wait for it. The
    lock of a process that was killed is free. That is so with flock; on a file system without it a newer filelock
    notices that the holder is gone if it was on this machine, and one before 3.25 raises NotImplementedError.
    """
    worker = None
    try:
        worker = ChildProcess.spawn(
            "a process that compiles kernels",
            "fedchoir.engines.local.fused.compile_worker",
            {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        )
        worker.send([json.dumps([target.backend, target.arch, target.warp_size]).encode()])
        while True:
            kernel, wait = queue.get_nowait()
            try:
                with FileLock(_mark(kernel).with_suffix(".lock"), timeout=wait):
                    if not _is_cached(kernel):
                        _compile(kernel, worker, reasons)
            except Timeout:
                if not wait:
                    queue.put((kernel, MAX_WAIT))
                else:
                    reasons.append(f"{kernel.name}: another process did not compile it within {MAX_WAIT:g} s")
    except Empty:
        pass
    except (OSError, RuntimeError) as error:  # no process could be started, it died, or there are no locks
        reasons.append(_line(error))
    finally:
        if worker is not None:
            worker.close()


def _compile(kernel: Kernel, worker: ChildProcess, reasons: list[str]) -> None:
    worker.send([kernel.module.encode(), kernel.name.encode(), kernel.description.encode()])
    key, error = (part.decode() for part in worker.receive())
    if key:
        _mark(kernel).write_text(key)
    else:
        reasons.append(f"{kernel.name}: {error}")


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or ['no reason given'])[0]}"
