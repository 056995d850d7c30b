"""A worker process compiles kernels, and what launches them, for a GPU that is not here."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from tests.engines.local.fused.compile_checks import CPU, INPUTS, model
from triton.backends.nvidia import driver as nvidia

from fedchoir.engines.local.fused.compile_ahead import missing_kernels

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
