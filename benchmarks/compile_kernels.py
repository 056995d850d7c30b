"""Seconds that the kernels of fused layers take to compile, without a GPU: first by one process, then by several.

    python benchmarks/compile_kernels.py --processes 2

The kernels are those of a training step and a prediction of each model, for the GPU named by ``--arch`` (90: H100 and
H200), each time with an empty cache. One process compiles a kernel when it is launched, as a run without
`compile_ahead` does; here it stops before the launch. Several processes include their start.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
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

CPU = torch.device("cpu")


def fused(name: str, inputs: InputSpec) -> nn.Module:
    model = build(name, 10, inputs).to(memory_format=torch.channels_last)
    layers.use_fused_layers(model)
    return model


def seconds(models: Sequence[nn.Module], inputs: InputSpec, processes: int) -> tuple[float, int]:
    """Wall-clock seconds to compile everything into an empty cache, and the number of kernels there."""
    for function in (f for module in (norm, depthwise, squeeze_excite) for f in vars(module).values()):
        if isinstance(function, JITFunction):
            function.device_caches.clear()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        start = time.perf_counter()
        if processes > 1:
            compile_ahead.compile_ahead(models, inputs, CPU, torch.bfloat16, processes)
        else:
            for module, name, description in compile_ahead.missing_kernels(models, inputs, CPU, torch.bfloat16):
                getattr(__import__(module, fromlist=[name]), name).preload(description)
        return time.perf_counter() - start, len(list(Path(folder).glob("*/*.cubin")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="resnet10,resnet12,efficientnet_b0,mobilenet_v2")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--arch", type=int, default=90)
    parser.add_argument("--image-size", type=int, default=32)
    o = parser.parse_args()
    driver.set_active(TargetOnly("cuda", o.arch, 32))
    layers.INTERPRETED = True  # fused layers on a CPU, too
    inputs = InputSpec.image(o.image_size)
    models = [fused(name, inputs) for name in o.models.split(",")]
    alone, count = seconds(models, inputs, 1)
    print(f"{count} kernels; one process: {alone:.1f} s", flush=True)
    together, found = seconds(models, inputs, o.processes)
    assert found == count, f"{o.processes} processes compiled {found} kernels"
    print(f"{o.processes} processes: {together:.1f} s, {alone / together:.2f} times as fast")


if __name__ == "__main__":
    main()
