"""Lean layers: that a model stays the same model, the kernels against torch, and that they can be compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import kernel_checks
import pytest
import torch
from torch import nn
from torchvision.models.resnet import BasicBlock

from fedchoir import Experiment, run
from fedchoir.engines import factory as start
from fedchoir.engines.local.fused import depthwise, norm
from fedchoir.engines.local.fused import squeeze_excite as excite
from fedchoir.engines.local.fused.layers import (
    FusedBasicBlock,
    FusedChain,
    FusedInvertedResidual,
    FusedMBConv,
    MeanPool,
    use_fused_layers,
)
from fedchoir.models import build
from fedchoir.utils.errors import UsageError


def test_on_a_cpu_it_is_refused_in_one_line(small: Callable[..., Experiment]) -> None:
    experiment = small("solo", fused=True)
    with pytest.raises(UsageError, match="--fused is not possible: it is for GPUs"):
        run(experiment)
    assert not (experiment.out / "events.jsonl").exists()  # type: ignore[operator]


@pytest.mark.parametrize(("absent", "line"), [("find_spec", "needs Triton"), ("which", "needs a C compiler")])
def test_what_is_missing_is_named(absent: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Params:
        dp_noise = 0.0

    monkeypatch.setattr(start.shutil if absent == "which" else start, absent, lambda name: None)
    with pytest.raises(UsageError, match=f"--fused is not possible: it {line}"):
        start._check_fused([torch.device("cuda")], Params())


def test_single_images_gradients_are_not_for_lean_layers() -> None:
    class Params:
        dp_noise = 1.0

    with pytest.raises(UsageError, match="--fused is not possible with dp_noise"):
        start._check_fused([torch.device("cuda")], Params())


@pytest.mark.parametrize(
    ("name", "block"), [("efficientnet_b0@0.5", FusedMBConv), ("mobilenet_v2@0.5", FusedInvertedResidual)]
)
def test_with_lean_layers_a_model_is_the_same_model(name: str, block: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = build(name, 4, image_size=32).eval()
    x = torch.randn(2, 3, 32, 32)
    names, before = list(model.state_dict()), model(x)
    use_fused_layers(model)
    use_fused_layers(model)  # twice is once
    layers = list(model.modules())
    assert sum(isinstance(m, block) for m in layers) >= 16
    assert sum(isinstance(m, FusedChain) for m in layers) == 2  # the first and the last
    assert any(isinstance(m, MeanPool) for m in layers)
    filters = [m.weight for m in layers if isinstance(m, nn.Conv2d) and m.groups > 1]
    assert filters
    assert all(depthwise._taps(w).data_ptr() == w.data_ptr() for w in filters)  # read as they lie, not copied
    assert list(model.state_dict()) == names
    torch.testing.assert_close(model(x), before)


def test_group_norm_is_left_to_torch() -> None:
    model = build("resnet10_gn@16", 4, image_size=32)
    use_fused_layers(model)
    kinds = {type(m) for m in model.modules()}
    assert BasicBlock in kinds
    assert not kinds & {FusedBasicBlock, FusedChain}


def test_what_the_kernels_cannot_do_is_left_to_torch() -> None:
    model = nn.Sequential(*kernel_checks.blocks())
    first, second, *_ = model
    first.conv[0][1] = nn.BatchNorm2d(96, affine=False)
    second.conv[1][0] = nn.Conv2d(96, 96, 7, 2, 3, groups=96, bias=False)
    use_fused_layers(model)
    fused = [isinstance(m, FusedInvertedResidual | FusedMBConv) for m in model]
    assert fused == [False, False, True, True, True, True, *[False] * 4]


def test_only_what_our_kernels_can_do_counts_as_depthwise() -> None:
    assert depthwise.is_depthwise(nn.Conv2d(8, 8, 3, groups=8, bias=False))
    for other in (
        nn.Conv2d(8, 8, 3, groups=8),
        nn.Conv2d(8, 16, 3, groups=8, bias=False),
        nn.Conv2d(8, 8, (3, 1), groups=8, bias=False),
        nn.Conv2d(8, 8, 7, groups=8, bias=False),
        nn.Conv2d(8, 8, 3, groups=8, bias=False, padding="same"),
        nn.Conv2d(8, 8, 3, groups=8, bias=False, padding=1, padding_mode="reflect"),
        nn.Linear(8, 8),
    ):
        assert not depthwise.is_depthwise(other)


@pytest.mark.slow
def test_kernels_compute_what_torch_does() -> None:
    """Interpreted, on a CPU, in a process of its own: Triton must know before it is imported."""
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, str(Path(kernel_checks.__file__))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(len(kernel_checks.CHECKS)), "checks"]


KINDS = {"arrived": "*i32", "seen": "*i64", "eps": "fp32", "momentum": "fp32", "learns": "i32", "track": "i32"}
MAPS = ("x", "y", "dx", "dearly", "dy", "dh", "u", "residual")
CONSTANTS = {
    "GATE": 1, "KEEP": True, "RESIDUAL": True, "LATE": True, "BACK": True,
    "RAGGED": True, "HALF": True, "PRECISION": "tf32", "BR": 32, "BI": 2, "BN": 16, "BK": 128,
    "G": 4, "BP": 32, "BC": 32, "H": 8, "W": 8,
}  # fmt: skip


def convolution(size: int, stride: int) -> dict[str, int]:
    side = 8 // stride
    return {"K": size, "S": stride, "P": size // 2, "HO": side, "WO": side, "ROWS": side, "GROUPS": 2}


KERNELS = [
    *((norm, name, {"ACT": act}) for name in ("_normalise", "_sums", "_gradient", "_image_sums") for act in (0, 2, 3)),
    (norm, "_moments", {}),
    *((norm, name, {"ACT": 3, "GATE": 2}) for name in ("_normalise", "_sums", "_gradient")),
    *((depthwise, "_forward", convolution(k, s)) for k in (3, 5) for s in (1, 2)),
    *((depthwise, "_input_gradient", convolution(k, s) | {"ACT": 3}) for k in (3, 5) for s in (1, 2)),
    *((depthwise, "_weight_gradient", convolution(k, 1) | {"TAPS": k % 4 or 1}) for k in (3, 5)),
    *((excite, name, {"BC": 64}) for name in ("_gate", "_back_to_mean", "_weight_gradients")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("module", "name", "more"), KERNELS)
def test_kernels_compile_for_a_gpu(module: ModuleType, name: str, more: dict[str, object]) -> None:
    """For an H100, which need not be there; the interpreter takes what the compiler refuses."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(module, name)
    constants = {k: v for k, v in (CONSTANTS | more).items() if k in kernel.arg_names}
    images = "*bf16" if module is not excite else "*fp32"
    kinds = {
        n: "constexpr" if n in constants else KINDS.get(n) or (
            "i32" if n[0].isupper() else images if n in MAPS else "*fp32"
        )
        for n in kernel.arg_names
    }  # fmt: skip
    made = triton.compile(ASTSource(kernel, kinds, constants), target=GPUTarget("cuda", 90, 32))
    assert ".visible .entry" in made.asm["ptx"]


@pytest.mark.gpu
@pytest.mark.parametrize("check", kernel_checks.CHECKS)
def test_kernels_on_a_gpu(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    kernel_checks.CHECKS[check]("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["mobilenet_v2@0.5", "efficientnet_b0@0.5"])
def test_a_lean_step_on_a_gpu_is_the_plain_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 the same; in bf16 no further from that than torch's own layers are."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    models = []
    for _ in range(2):
        model = build(name, 4, image_size=32).cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for m in model.modules():
            if hasattr(m, "p"):
                m.p = 0.0  # their draws would differ
        models.append(model)
    plain, fused = models
    fused.load_state_dict(plain.state_dict())
    use_fused_layers(fused)
    x = torch.randn(64, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)

    def slopes(model: nn.Module, half: bool) -> torch.Tensor:
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            loss = model(x).float().square().mean()
        loss.backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    def away(found: torch.Tensor) -> float:
        return float((found - exact).norm() / exact.norm())

    exact = slopes(plain, half=False)
    assert away(slopes(fused, half=False)) < 0.01
    assert away(slopes(fused, half=True)) < 1.2 * away(slopes(plain, half=True))
