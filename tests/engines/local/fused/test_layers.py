"""Fused layers: a model keeps its weights and outputs, and unsupported layers stay torch's own."""

from __future__ import annotations

import pytest
import torch
from tests.engines.local.fused import kernel_checks
from torch import nn
from torchvision.models.resnet import BasicBlock

from fedchoir.engines.local.fused import depthwise
from fedchoir.engines.local.fused.layers import (
    FusedBasicBlock,
    FusedChain,
    FusedInvertedResidual,
    FusedMBConv,
    MeanPool,
    is_depthwise,
    use_fused_layers,
)
from fedchoir.models import build
from fedchoir.utils.input_spec import InputSpec


@pytest.mark.parametrize(
    ("name", "block"), [("efficientnet_b0@0.5", FusedMBConv), ("mobilenet_v2@0.5", FusedInvertedResidual)]
)
def test_a_model_with_fused_layers_has_the_same_weights_and_outputs(name: str, block: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = build(name, 4, InputSpec.image(32)).eval()
    x = torch.randn(2, 3, 32, 32)
    names, before = list(model.state_dict()), model(x)
    use_fused_layers(model)
    use_fused_layers(model)  # a second call changes nothing
    layers = list(model.modules())
    assert sum(isinstance(m, block) for m in layers) >= 16
    assert sum(isinstance(m, FusedChain) for m in layers) == 2  # the first and the last
    assert any(isinstance(m, MeanPool) for m in layers)
    filters = [m.weight for m in layers if isinstance(m, nn.Conv2d) and m.groups > 1]
    assert filters
    assert all(depthwise._taps(w).data_ptr() == w.data_ptr() for w in filters)  # a view, no copy
    assert list(model.state_dict()) == names
    torch.testing.assert_close(model(x), before)


def test_group_norm_is_left_to_torch() -> None:
    model = build("resnet10_gn@16", 4, InputSpec.image(32))
    use_fused_layers(model)
    kinds = {type(m) for m in model.modules()}
    assert BasicBlock in kinds
    assert not kinds & {FusedBasicBlock, FusedChain}


def test_unsupported_blocks_are_left_to_torch() -> None:
    model = nn.Sequential(*kernel_checks.blocks())
    first, second, *_ = model
    first.conv[0][1] = nn.BatchNorm2d(96, affine=False)
    second.conv[1][0] = nn.Conv2d(96, 96, 7, 2, 3, groups=96, bias=False)
    use_fused_layers(model)
    fused = [isinstance(m, FusedInvertedResidual | FusedMBConv) for m in model]
    assert fused == [False, False, True, True, True, True, *[False] * 4]


def test_depthwise_is_what_the_kernels_support() -> None:
    assert is_depthwise(nn.Conv2d(8, 8, 3, groups=8, bias=False))
    for other in (
        nn.Conv2d(8, 8, 3, groups=8),
        nn.Conv2d(8, 16, 3, groups=8, bias=False),
        nn.Conv2d(8, 8, (3, 1), groups=8, bias=False),
        nn.Conv2d(8, 8, 7, groups=8, bias=False),
        nn.Conv2d(8, 8, 3, groups=8, bias=False, padding="same"),
        nn.Conv2d(8, 8, 3, groups=8, bias=False, padding=1, padding_mode="reflect"),
        nn.Linear(8, 8),
    ):
        assert not is_depthwise(other)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["mobilenet_v2@0.5", "efficientnet_b0@0.5"])
def test_a_fused_step_on_a_gpu_is_the_plain_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 the same; in bf16 no further from it than torch's own layers are."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    models = []
    for _ in range(2):
        model = build(name, 4, InputSpec.image(32)).cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for m in model.modules():
            if hasattr(m, "p"):
                m.p = 0.0  # dropout would differ
        models.append(model)
    plain, fused = models
    fused.load_state_dict(plain.state_dict())
    use_fused_layers(fused)
    x = torch.randn(64, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)

    def gradients(model: nn.Module, bf16: bool) -> torch.Tensor:
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
            loss = model(x).float().square().mean()
        loss.backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    def error(found: torch.Tensor) -> float:
        return float((found - exact).norm() / exact.norm())

    exact = gradients(plain, bf16=False)
    assert error(gradients(fused, bf16=False)) < 0.01
    assert error(gradients(fused, bf16=True)) < 1.2 * error(gradients(plain, bf16=True))
