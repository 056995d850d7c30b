"""The Triton kernels: interpreted on a CPU against torch, compiled for a GPU that need not be there, and run on one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tests.engines.local.fused import kernel_checks

from fedchoir.engines.local.fused.kernels import depthwise, norm, squeeze_excite


@pytest.mark.slow
def test_kernels_compute_what_torch_does() -> None:
    """Interpreted, in a process of its own: Triton reads the variable when it is imported."""
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, str(Path(kernel_checks.__file__))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(len(kernel_checks.CHECKS)), "checks"]


TYPES = {
    "counters": "*i32", "num_batches": "*i64", "eps": "fp32", "momentum": "fp32", "training": "i32",
    "track_stats": "i32",
}  # fmt: skip
IMAGES = ("x", "y", "dx", "dsum", "dy", "dh", "residual")
CONSTANTS = {
    "GATE": 1, "IMAGE_SCALE": True, "RESIDUAL": True, "ADD_FIRST": True, "BACKWARD": True,
    "RAGGED": True, "BF16": True, "PRECISION": "tf32", "BR": 32, "BI": 2, "BN": 16, "BK": 128,
    "G": 4, "BP": 32, "BC": 32, "H": 8, "W": 8,
}  # fmt: skip


def convolution(size: int, stride: int) -> dict[str, int]:
    side = 8 // stride
    return {"K": size, "S": stride, "P": size // 2, "HO": side, "WO": side, "ROWS": side, "GROUPS": 2}


KERNELS = [
    *((norm, name, {"ACT": act}) for name in ("normalise", "sums", "gradient", "image_sums") for act in (0, 2, 3)),
    (norm, "moments", {}),
    *((norm, name, {"ACT": 3, "GATE": 2}) for name in ("normalise", "sums", "gradient")),
    *((depthwise, "forward", convolution(k, s)) for k in (3, 5) for s in (1, 2)),
    *((depthwise, "input_gradient", convolution(k, s) | {"ACT": 3}) for k in (3, 5) for s in (1, 2)),
    *((depthwise, "weight_gradient", convolution(k, 1) | {"TAP_ROWS": k % 4 or 1}) for k in (3, 5)),
    *((squeeze_excite, name, {"BC": 64}) for name in ("gate", "pool_gradient", "weight_gradients")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("module", "name", "more"), KERNELS)
def test_kernels_compile_for_a_gpu(module: ModuleType, name: str, more: dict[str, object]) -> None:
    """For an H100. The interpreter accepts code that the compiler refuses."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(module, name)
    constants = {k: v for k, v in (CONSTANTS | more).items() if k in kernel.arg_names}
    images = "*fp32" if module is squeeze_excite else "*bf16"

    def type_of(argument: str) -> str:
        if argument in constants:
            return "constexpr"
        return TYPES.get(argument) or ("i32" if argument[0].isupper() else images if argument in IMAGES else "*fp32")

    source = ASTSource(kernel, {name: type_of(name) for name in kernel.arg_names}, constants)
    assert ".visible .entry" in triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]


@pytest.mark.gpu
@pytest.mark.parametrize("check", kernel_checks.CHECKS)
def test_kernels_on_a_gpu(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    kernel_checks.CHECKS[check]("cuda")
