"""Fused layers: a model keeps its weights and outputs, and unsupported layers stay torch's own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.engines.local.fused import kernel_checks
from torch import nn
from torchvision.models import mobilenet_v3_small, resnet50, resnext50_32x4d
from torchvision.models.efficientnet import MBConv, MBConvConfig
from torchvision.models.mobilenetv2 import InvertedResidual
from torchvision.models.resnet import BasicBlock, Bottleneck
from torchvision.ops import Conv2dNormActivation

from fedchoir import methods
from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.core.training import EagerTrainer
from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.scenario import ClientData
from fedchoir.engines.local.client_pool import ClientPool
from fedchoir.engines.local.fused import depthwise, layers, norm
from fedchoir.engines.local.fused.layers import (
    FusedBasicBlock,
    FusedBottleneck,
    FusedChain,
    FusedInvertedResidual,
    FusedMBConv,
    MeanPool,
    is_depthwise,
    use_fused_layers,
)
from fedchoir.models import build, laid_out
from fedchoir.models.adapter import AdaptedModel
from fedchoir.models.projection import ProjectedModel
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
    found = {type(m) for m in model.modules()}
    assert BasicBlock in found
    assert not found & {FusedBasicBlock, FusedChain}


def test_unsupported_blocks_are_left_to_torch() -> None:
    model = nn.Sequential(*kernel_checks.blocks())
    first, second, *_ = model
    first.conv[0][1] = nn.BatchNorm2d(96, affine=False)
    second.conv[1][0] = nn.Conv2d(96, 96, 7, 2, 3, groups=96, bias=False)
    use_fused_layers(model)
    fused = [isinstance(m, FusedInvertedResidual | FusedMBConv) for m in model]
    assert fused == [False, False, True, True, True, True, *[False] * 7]


def kinds(model: nn.Module) -> set[type[nn.Module]]:
    use_fused_layers(model)
    return {type(m) for m in model.modules()}


def test_all_blocks_of_a_large_resnet_are_fused() -> None:
    found = kinds(model := resnet50(num_classes=4))
    assert FusedBottleneck in found
    assert Bottleneck not in found
    assert sum(isinstance(m, FusedBottleneck) for m in model.modules()) == 16


def test_layers_that_the_kernels_do_not_know_are_left_to_torch() -> None:
    """Grouped convolutions, other activations, and known blocks in which somebody has replaced a layer."""
    assert FusedBottleneck not in kinds(resnext50_32x4d())
    mobile = mobilenet_v3_small()
    kinds(mobile)
    fused = [m for m in mobile.modules() if isinstance(m, FusedChain)]
    assert all(type(m[2]) in layers.ACTIVATIONS for m in fused if len(m) == 3)
    assert any(type(m) is nn.Hardswish for m in mobile.modules())
    gelu, pooled, tail = (Bottleneck(32, 8), BasicBlock(16, 16), Bottleneck(32, 8))
    gelu.relu = nn.GELU()
    pooled.downsample = nn.Sequential(nn.AvgPool2d(1), nn.Conv2d(16, 16, 1), nn.BatchNorm2d(16))
    tail.bn3 = nn.InstanceNorm2d(32)
    for block in (gelu, pooled, tail):
        assert not {FusedBottleneck, FusedBasicBlock} & kinds(nn.Sequential(block))


def _nothing(*_: object) -> None:
    """A hook."""


def change_mobile(name: str) -> nn.Module:
    """A block of MobileNet or EfficientNet in which one thing is not as usual."""
    block: Any = InvertedResidual(16, 16, 1, 6)
    if name == "bias":
        block.conv[0][0] = nn.Conv2d(16, 96, 1)
    elif name == "wide filter":
        block.conv[2] = nn.Conv2d(96, 16, 3, padding=1, bias=False)
    elif name == "one more layer":
        block.conv.insert(2, nn.ReLU())
    elif name == "hook":
        block.conv[1][0].register_forward_pre_hook(_nothing)
    else:
        block = MBConv(MBConvConfig(6, 3, 1, 16, 16, 1), 0.0, nn.BatchNorm2d)
        if name == "excitation with ReLU":
            block.block[2].activation = nn.ReLU()
        elif name == "excitation without bias":
            block.block[2].fc2 = nn.Conv2d(4, 96, 1, bias=False)
    return block


@pytest.mark.parametrize(
    "name", ["bias", "wide filter", "one more layer", "hook", "excitation with ReLU", "excitation without bias"]
)
def test_a_changed_block_of_mobilenet_or_efficientnet_is_left_to_torch(name: str) -> None:
    block = change_mobile(name)
    assert not {FusedInvertedResidual, FusedMBConv} & kinds(nn.Sequential(block))
    assert torch.isfinite(block(torch.randn(2, 16, 8, 8))).all()
    assert {FusedInvertedResidual, FusedMBConv} & kinds(nn.Sequential(InvertedResidual(16, 16, 1, 6)))


def test_a_container_in_the_place_of_a_layer_is_left_to_torch() -> None:
    block = Bottleneck(32, 8)
    block.conv2 = nn.Sequential(block.conv2)
    assert FusedBottleneck not in kinds(nn.Sequential(block))


@pytest.mark.parametrize("kind", [nn.Sequential, Conv2dNormActivation])
def test_a_part_of_a_fused_sequence_is_a_plain_one(kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's forward pass may take the sequence apart."""
    monkeypatch.setattr(layers, "INTERPRETED", True)  # as on a GPU
    conv, norm, act = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()
    chain: Any = nn.Sequential(conv, norm, act) if kind is nn.Sequential else Conv2dNormActivation(3, 8)
    use_fused_layers(nn.Sequential(chain))
    assert type(chain) is FusedChain
    x = torch.randn(2, 3, 8, 8)
    conv, norm, act = chain
    for part, expected in (
        (chain[:1], conv(x)),
        (chain[:2], norm(conv(x))),
        (chain[1:], act(norm(conv(x)))),
        (chain[:], act(norm(conv(x)))),
    ):
        assert type(part) is nn.Sequential
        torch.testing.assert_close(part(conv(x) if part[0] is norm else x), expected)
    assert chain[0] is conv
    assert [name for name, _ in chain[1:].named_children()] == ["1", "2"]


def test_layers_around_a_watched_module_keep_their_class() -> None:
    first, second = BasicBlock(16, 16), BasicBlock(16, 16)
    use_fused_layers(nn.Sequential(first, second), [first, second.bn2])
    assert type(first) is FusedBasicBlock
    assert type(second) is BasicBlock


@pytest.fixture
def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users' modules get the layout that they have on a GPU."""
    monkeypatch.setattr(AdaptedModel, "memory_format", property(lambda model: model._gpu_format))


@pytest.mark.usefixtures("as_on_gpu")
def test_the_feature_map_that_a_user_names_inside_a_block_can_be_read() -> None:
    x = torch.randn(2, 3, 32, 32)
    for name, fused in (("resnet18", 8), ("resnet18[feature_map=layer4.1.bn2]", 7)):
        model = build(f"torchvision.models:{name}", 4, InputSpec.image(32)).eval()
        expected = model.stages(x)
        assert model.memory_format is torch.channels_last
        for outer in (model, ProjectedModel(model, 8)):
            copied = laid_out(copy.deepcopy(outer))
            use_fused_layers(copied, copied.watched_modules())
            assert sum(isinstance(m, FusedBasicBlock) for m in copied.modules()) == fused
            assert sum(type(m) is BasicBlock for m in copied.modules()) == 8 - fused
            torch.testing.assert_close(copied.eval().feature_map(x), expected[0], rtol=1e-4, atol=1e-4)


def fused_in_pool(model: str) -> int:
    """How many fused blocks a client's model has; it also predicts."""
    data = ImageSet(torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.arange(2))
    info = ClientInfo("client", f"torchvision.models:{model}", 2, 2, "global")
    solo = methods.get("solo")
    method = solo(solo.Params(), FederationSpec(("a", "b"), (info,), 1, 0, inputs=data.input_spec))
    clients = ClientPool(
        method, [ClientData("client", data, "global")], None, EagerTrainer(), device=torch.device("cpu"),
        precision="fp32", fused=True, budget=2e9,
    )  # fmt: skip
    assert clients[0].model(torch.zeros(2, 3, 32, 32)).shape == (2, 2)
    return sum(isinstance(m, FusedBasicBlock) for m in clients[0].model.modules())


@pytest.mark.usefixtures("as_on_gpu")
@pytest.mark.parametrize(("model", "fused"), [("resnet18", 8), ("resnet18[feature_map=layer4.1.bn2]", 7)])
def test_the_client_pool_fuses_users_models(model: str, fused: int) -> None:
    assert fused_in_pool(model) == fused


def test_the_client_pool_leaves_models_with_contiguous_weights_to_torch() -> None:
    assert fused_in_pool("resnet18") == 0


def test_maps_that_one_launch_cannot_cover_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "INTERPRETED", True)
    strided = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU())
    kinds(model := nn.Sequential(strided, Bottleneck(16, 4, base_width=128)))
    most = layers.MAX_PROGRAMS * norm.TILE["BP"]
    for images in (250, most // 112**2, most // 112**2 + 1, 1024):
        fits = images * 112**2 <= most
        assert layers._can_fuse(model[0], torch.empty(images, 3, 224, 224, device="meta")) is fits
        assert layers._can_fuse(model[1], torch.empty(images, 16, 112, 112, device="meta")) is fits


def test_positions_are_those_of_the_first_convolutions_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "INTERPRETED", True)
    for kernel, stride, padding in ((3, 2, 1), (3, 1, 0), (5, 1, 4), (1, 1, 0), (3, 1, "same")):
        conv = nn.Conv2d(8, 8, kernel, stride, padding)
        kinds(model := nn.Sequential(nn.Sequential(conv, nn.BatchNorm2d(8), nn.ReLU())))
        x = torch.empty(3, 8, 7, 9, device="meta")
        positions = conv.to("meta")(x)[:, 0].numel()
        for programs, fits in ((positions, True), (positions - 1, False)):
            monkeypatch.setattr(layers, "MAX_PROGRAMS", programs)
            monkeypatch.setitem(norm.TILE, "BP", 1)
            assert layers._can_fuse(model[0], x) is fits


def test_indices_fit_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "INTERPRETED", True)
    kinds(model := nn.Sequential(nn.Sequential(nn.Conv2d(3, 1024, 1), nn.BatchNorm2d(1024), nn.ReLU())))
    for images, fits in ((160, True), (170, False)):
        assert layers._can_fuse(model[0], torch.empty(images, 3, 112, 112, device="meta")) is fits


def test_the_mean_of_maps_without_images_is_torchs() -> None:
    kinds(model := nn.Sequential(nn.AdaptiveAvgPool2d(1)))
    x = torch.randn(4, 3, 5)
    torch.testing.assert_close(model(x), nn.AdaptiveAvgPool2d(1)(x))


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
