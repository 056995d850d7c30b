"""Every architecture implements the common interface."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from tests.models.model_checks import built, check_interface, images

from fedchoir import models
from fedchoir.models import build

NARROW = [
    "resnet10@4",
    "resnet12@4",
    "resnet18@4",
    "resnet20@4",
    "resnet34@4",
    "resnet10_gn@4",
    "resnet12_gn@4",
    "resnet18_gn@4",
    "mobilenet_v2@0.25",
    "efficientnet_b0@0.25",
    "efficientnet_b0_cifar@0.25",
    "googlenet@0.125",
    "googlenet_cifar@0.125",
    "vgg9@4",
    "alexnet@8",
    "simple_cnn@8",
    "cnn2@4",
    "mlp@16",
    "logistic",
]
NAMES = ("resnet10@4", "simple_cnn@4", "mlp", "mobilenet_v2@0.25", "timm:resnet18", "timm:vit_tiny_patch16_224")


def test_the_narrow_list_covers_every_built_in_name() -> None:
    assert sorted(name.split("@")[0] for name in NARROW) == models.names()


@pytest.mark.parametrize("name", models.names())
def test_full_size_models_keep_the_interface(name: str) -> None:
    model = built(name)
    assert model.name == name
    assert model.training
    check_interface(model, images(1))


@pytest.mark.parametrize("size", [28, 32, 64])
@pytest.mark.parametrize("name", NARROW)
def test_narrow_models_keep_the_interface_at_every_size(name: str, size: int) -> None:
    model = built(name, num_classes=3, image_size=size)
    assert model.name == name
    check_interface(model, images(1, size))


@pytest.mark.parametrize("name", [*NARROW, "timm:mobilenetv3_small_100"])
def test_state_dict_round_trip_and_deepcopy(name: str) -> None:
    model, other = built(name, seed=0).eval(), built(name, seed=1).eval()
    twin = copy.deepcopy(model)
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        z = model(images())
        assert torch.equal(other(images()), z)
        assert torch.equal(twin(images()), z)
        for parameter in model.parameters():
            parameter.zero_()
        assert torch.equal(twin(images()), z)
    assert (twin.name, twin.feature_dim) == (model.name, model.feature_dim)


@pytest.mark.parametrize("name", [*NARROW, "timm:convnext_atto"])
def test_gradients_reach_every_parameter_and_training_lowers_the_loss(name: str) -> None:
    torch.manual_seed(0)
    model = models.build(name, 3)
    x, y = images(12), torch.arange(12) % 3
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    losses = []
    for step in range(6):
        loss = F.cross_entropy(model(x), y)
        optimiser.zero_grad()
        loss.backward()
        if step == 0:
            silent = [key for key, p in model.named_parameters() if p.grad is None or not p.grad.any()]
            assert not silent
        optimiser.step()
        losses.append(loss.item())
    assert min(losses[-2:]) < losses[0]


@pytest.mark.parametrize("name", ["resnet10@4", "efficientnet_b0@0.25", "googlenet@0.125", "vgg9@4", "alexnet@8"])
def test_memory_format_and_autocast_keep_the_answer(name: str) -> None:
    model = built(name).eval()
    with torch.no_grad():
        z = model(images())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = model(images())
        model.to(memory_format=torch.channels_last)
        last = model(images().to(memory_format=torch.channels_last))
    assert half.dtype == torch.bfloat16
    assert (half.float() - z).norm() < 0.1 * z.norm() + 0.02
    torch.testing.assert_close(last, z, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["mobilenet_v2@0.25", "efficientnet_b0@0.25", "googlenet@0.125", "cnn2@4"])
def test_dropout_of_the_classifier_leaves_the_features_alone(name: str) -> None:
    model = built(name)
    h = torch.rand(4, model.feature_dim) + 1
    before = h.clone()
    assert not torch.equal(model.classify(h), model.classify(h))
    assert torch.equal(h, before)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NARROW)
def test_a_training_step_can_be_captured_in_a_cuda_graph(name: str) -> None:
    model = built(name).cuda().to(memory_format=torch.channels_last)
    x = images(8).cuda().to(memory_format=torch.channels_last)
    y = torch.arange(8, device="cuda")

    def step() -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    graph.replay()
    assert loss.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_one_pass_gives_all(name: str) -> None:
    torch.manual_seed(0)
    model = build(name, 4).eval()
    x = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        m, h, z = model.stages(x)
        torch.testing.assert_close(m, model.feature_map(x))
        torch.testing.assert_close(h, model.features(x))
        torch.testing.assert_close(z, model(x))


def test_statistics_move_once() -> None:
    torch.manual_seed(0)
    one, two = build("resnet10@4", 4), build("resnet10@4", 4)
    two.load_state_dict(one.state_dict())
    x = torch.randn(4, 3, 16, 16)
    one.stages(x), two(x)
    for a, b in zip(one.buffers(), two.buffers(), strict=True):
        assert torch.equal(a, b)
