"""Seconds that the kernels of fused layers take to compile, without a GPU.

First one process compiles, then several, then several of each of as many engine processes as there are models.

    python benchmarks/compile_kernels.py --processes 2

The kernels are those of a training step and a prediction of each model, for the GPU named by ``--arch`` (90: H100 and
H200), each time with an empty cache. One process compiles a kernel when it is launched, as a run without
`compile_ahead` does; here it stops before the launch. Several processes include their start. Engine processes have
imported everything and built their model when the clock starts; `--devices cuda:0,cuda:0,cuda:0,cuda:0` starts four.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from multiprocessing.synchronize import Barrier
from pathlib import Path

import torch
from torch import nn
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from fedchoir.engines.local.fused import compile_ahead, layers
from fedchoir.engines.local.fused.compile_worker import TargetOnly
from fedchoir.engines.local.fused.kernels import depthwise, norm, squeeze_excite
from fedchoir.models import build
from fedchoir.utils.input_spec import InputSpec
from fedchoir.utils.threads import cores

CPU = torch.device("cpu")


def fused(name: str, inputs: InputSpec) -> nn.Module:
    model = build(name, 10, inputs).to(memory_format=torch.channels_last)
    layers.use_fused_layers(model)
    return model


def without_gpu(arch: int) -> None:
    """Compile for this kind of GPU."""
    driver.set_active(TargetOnly("cuda", arch, 32))
    layers.INTERPRETED = True  # fused layers on a CPU, too


def processor_seconds() -> float:
    """Of this process and its children that have ended."""
    return sum(os.times()[:4])


def seconds(models: Sequence[nn.Module], inputs: InputSpec, processes: int) -> tuple[float, float, int]:
    """Wall-clock and processor seconds to compile everything into an empty cache, and the number of kernels there."""
    for function in (f for module in (norm, depthwise, squeeze_excite) for f in vars(module).values()):
        if isinstance(function, JITFunction):
            function.device_caches.clear()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        start, processor = time.perf_counter(), processor_seconds()
        if processes > 1:
            compile_ahead.compile_ahead(models, inputs, CPU, torch.bfloat16, processes)
        else:
            for kernel in compile_ahead.missing_kernels(models, inputs, CPU, torch.bfloat16):
                getattr(import_module(kernel.module), kernel.name).preload(kernel.description)
        return time.perf_counter() - start, processor_seconds() - processor, kernels(folder)


def kernels(folder: str) -> int:
    return len(list(Path(folder).glob("*/*.cubin")))


def engine(name: str, image_size: int, arch: int, processes: int, ready: Barrier, done: Barrier) -> None:
    """One engine process, which compiles what one model needs."""
    without_gpu(arch)
    inputs = InputSpec.image(image_size)
    model = fused(name, inputs)
    ready.wait()
    compile_ahead.compile_ahead([model], inputs, CPU, torch.bfloat16, processes)
    done.wait()


def engines_seconds(names: Sequence[str], image_size: int, arch: int, processes: int) -> tuple[float, int]:
    """Wall-clock seconds until all engine processes have compiled, and the number of kernels in their common cache."""
    context = multiprocessing.get_context("spawn")
    ready, done = (context.Barrier(len(names) + 1) for _ in range(2))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        running = [
            context.Process(target=engine, args=(name, image_size, arch, processes, ready, done)) for name in names
        ]
        for process in running:
            process.start()
        ready.wait()
        start = time.perf_counter()
        done.wait()
        wall = time.perf_counter() - start
        for process in running:
            process.join()
        return wall, kernels(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="resnet10,resnet12,efficientnet_b0,mobilenet_v2")
    parser.add_argument("--processes", type=int, default=cores())
    parser.add_argument("--arch", type=int, default=90)
    parser.add_argument("--image-size", type=int, default=32)
    o = parser.parse_args()
    without_gpu(o.arch)
    inputs, names = InputSpec.image(o.image_size), o.models.split(",")
    models = [fused(name, inputs) for name in names]
    alone, processor, count = seconds(models, inputs, 1)
    print(f"{count} kernels; one process: {alone:.1f} s, {processor:.1f} s of processor time", flush=True)
    together, processor, found = seconds(models, inputs, o.processes)
    assert found == count, f"{o.processes} processes compiled {found} kernels"
    print(
        f"{o.processes} processes: {together:.1f} s, {processor:.1f} s of processor time, {alone / together:.2f} times "
        "as fast",
        flush=True,
    )
    wall, found = engines_seconds(names, o.image_size, o.arch, o.processes)
    assert found == count, f"{len(names)} engine processes compiled {found} kernels"
    print(f"{len(names)} engine processes, each with up to {o.processes}: {wall:.1f} s")


if __name__ == "__main__":
    main()
