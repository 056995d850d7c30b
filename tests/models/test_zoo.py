"""Every architecture keeps the promises of the one interface, and has the size its papers give it."""

import copy
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from fedchoir import models
from fedchoir.utils.errors import UsageError

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
    "googlenet@0.125",
    "vgg9@4",
    "alexnet@8",
    "simple_cnn@8",
    "cnn2@4",
    "mlp@16",
    "logistic",
]
TIMM = [
    "timm:convnext_atto",
    "timm:resnet18",
    "timm:mobilenetv3_small_100",
    "timm:vit_tiny_patch16_224",
    "timm:efficientnet_lite0",
]


def images(batch: int = 2, size: int = 32, seed: int = 0) -> torch.Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(seed))


def built(name: str, num_classes: int = 10, image_size: int = 32, seed: int = 0) -> models.VisionModel:
    torch.manual_seed(seed)
    return models.build(name, num_classes, image_size=image_size)


def parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def check_interface(model: models.VisionModel, x: torch.Tensor) -> None:
    """Shapes, and the four ways through the model agree."""
    model.eval()
    with torch.no_grad():
        feature_map, h, z = model.feature_map(x), model.features(x), model(x)
        h_both, z_both = model.features_and_logits(x)
        h_before = h.clone()
        z_of_h = model.classify(h)
    assert feature_map.ndim == 4
    assert feature_map.shape[:2] == (len(x), model.map_dim)
    assert h.shape == (len(x), model.feature_dim)
    assert z.shape == (len(x), model.num_classes)
    for one, other in [(h, h_both), (z, z_both), (z, z_of_h), (h, h_before)]:
        assert torch.equal(one, other)
    assert z.isfinite().all()


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


@pytest.mark.parametrize("name", TIMM)
def test_timm_models_keep_the_interface(name: str) -> None:
    model = built(name, num_classes=3)
    assert model.training
    check_interface(model, images(2))


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("resnet10", 4_903_242),
        ("resnet18", 11_173_962),
        ("resnet34", 21_282_122),
        ("mobilenet_v2", 2_236_682),  # strides have no parameters: torchvision's own at 10 classes
        ("efficientnet_b0", 4_020_358),
        ("googlenet", 5_610_154 - 64 * 3 * (7 * 7 - 3 * 3)),  # torchvision's, with a 3×3 stem
        ("vgg9", 3_492_394),
        ("logistic", 3 * 32 * 32 * 10 + 10),
        ("mlp", 3072 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10),
        ("simple_cnn", 75 * 32 + 32 + 800 * 64 + 64 + 1600 * 512 + 512 + 512 * 10 + 10),
        ("cnn2", 27 * 32 + 32 + 288 * 64 + 64 + 12544 * 128 + 128 + 128 * 10 + 10),
    ],
)
def test_parameter_counts(name: str, count: int) -> None:
    assert parameters(built(name)) == count


def test_resnet12_is_resnet10_with_one_more_block_in_the_first_stage() -> None:
    block = 2 * (64 * 64 * 9) + 2 * (2 * 64)
    assert parameters(built("resnet12")) - parameters(built("resnet10")) == block


def test_group_norm_keeps_the_size_and_looks_at_one_image_alone() -> None:
    grouped, batched = built("resnet12_gn@16"), built("resnet12@16")
    assert parameters(grouped) == parameters(batched)
    assert not list(grouped.buffers())  # no running statistics: all that a client learns is averaged
    x = images(batch=4)
    with torch.no_grad():
        torch.testing.assert_close(grouped.train()(x)[:1], grouped.train()(x[:1]))
        assert not torch.allclose(batched.train()(x)[:1], batched.train()(x[:1]), atol=1e-3)
    assert {m.num_groups for m in grouped.modules() if isinstance(m, torch.nn.GroupNorm)} == {1, 2, 4, 8}


def test_resnet20_has_about_270_thousand_parameters() -> None:
    count = parameters(built("resnet20"))
    projections = (16 * 32 + 2 * 32) + (32 * 64 + 2 * 64)
    assert count == 269_722 + projections  # He et al.'s padding shortcuts have none


@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("resnet10@4", 4),
        ("resnet18@4", 4),
        ("resnet20@4", 8),
        ("mobilenet_v2@0.25", 4),
        ("efficientnet_b0@0.25", 2),
        ("googlenet@0.125", 4),
        ("vgg9@4", 4),
        ("alexnet@8", 2),
        ("simple_cnn@8", 5),
        ("cnn2@4", 14),
        ("logistic", 32),
        ("timm:vit_tiny_patch16_224", 2),
        ("timm:convnext_atto", 1),
    ],
)
def test_side_of_the_map_at_32(name: str, side: int) -> None:
    with torch.no_grad():
        assert built(name).eval().feature_map(images(1)).shape[2:] == (side, side)


@pytest.mark.parametrize(
    ("name", "map_dim", "feature_dim"),
    [
        ("resnet10@16", 128, 128),
        ("resnet18@16", 128, 128),
        ("resnet20@8", 32, 32),
        ("mobilenet_v2@0.25", 1280, 1280),
        ("efficientnet_b0@0.25", 320, 320),
        ("googlenet@0.25", 256, 256),
        ("vgg9@16", 128, 256),
        ("alexnet@16", 64, 256),
        ("simple_cnn@8", 16, 128),
        ("cnn2@8", 16, 32),
        ("mlp@50", 3, 50),
    ],
)
def test_width_sets_the_dimensions(name: str, map_dim: int, feature_dim: int) -> None:
    model = built(name)
    assert (model.map_dim, model.feature_dim) == (map_dim, feature_dim)


@pytest.mark.parametrize("name", ["resnet10", "mobilenet_v2", "googlenet", "vgg9", "mlp"])
def test_the_default_width_written_out_is_the_same_model(name: str) -> None:
    width = {"resnet10": "64", "vgg9": "32", "mlp": "200"}.get(name, "1")
    assert parameters(built(f"{name}@{width}")) == parameters(built(name))


def test_map_of_a_convolutional_model_pools_to_its_features() -> None:
    model = built("resnet10@4").eval()
    torch.testing.assert_close(model.feature_map(images()).mean((2, 3)), model.features(images()))


def test_tokens_go_back_to_their_places() -> None:
    """Row 1, column 0 of the 2×2 map is the third patch, which follows the class token."""
    model = built("timm:vit_tiny_patch16_224").eval()
    with torch.no_grad():
        tokens = model.trunk.forward_features(images(1))  # type: ignore[operator]
        feature_map = model.feature_map(images(1))
    torch.testing.assert_close(feature_map[0, :, 1, 0], tokens[0, 1 + 2])


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


@pytest.mark.parametrize("name", [*NARROW, "timm:vit_tiny_patch16_224"])
def test_the_seed_alone_decides_the_weights(name: str) -> None:
    first, second, different = (built(name, seed=seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert any(not torch.equal(first[key], different[key]) for key in first)


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


def test_every_name_has_a_description() -> None:
    for name in [*models.names(), *NARROW, *TIMM]:
        line = models.describe(name)
        assert line
        assert "\n" not in line


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("resnet11", ["'resnet11'", "resnet10", "fedchoir list models"]),
        ("ResNet18", ["'ResNet18'", "resnet18", "fedchoir list models"]),
        ("zzzzz", ["'zzzzz'", "fedchoir list models"]),
        ("", ["''", "fedchoir list models"]),
        ("mobilenetv2@0.5", ["'mobilenetv2@0.5'", "mobilenet_v2"]),
        ("resnet10@", ["'resnet10@'", "whole number", "resnet10@16"]),
        ("resnet10@0", ["'0'", "whole number"]),
        ("resnet10@0.25", ["'0.25'", "whole number"]),
        ("resnet10@-4", ["'-4'", "whole number"]),
        ("resnet10@²", ["'²'", "whole number"]),
        ("vgg9@99999", ["'99999'", "4096"]),
        ("mobilenet_v2@wide", ["'wide'", "multiplier", "mobilenet_v2@0.25"]),
        ("efficientnet_b0@nan", ["'nan'", "multiplier"]),
        ("googlenet@inf", ["'inf'", "multiplier"]),
        ("googlenet@0", ["'0'", "multiplier"]),
        ("logistic@4", ["'logistic@4'", "no width"]),
        ("timm:convnext_ato", ["'timm:convnext_ato'", "timm:convnext_atto", "fedchoir list models"]),
        ("timm:", ["'timm:'", "fedchoir list models"]),
        ("timm:hf-hub:some/model", ["'timm:hf-hub:some/model'"]),
        ("timm:inception_v3", ["'timm:inception_v3'", "32×32"]),
    ],
)
def test_wrong_names_are_told_in_one_line(name: str, parts: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        models.build(name, 10)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize(("classes", "size", "named"), [(0, 32, "num_classes"), (10, 8, "image_size")])
def test_impossible_dimensions_are_told(classes: int, size: int, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        models.build("simple_cnn", classes, image_size=size)


def test_timm_is_imported_only_when_asked_for() -> None:
    code = "import sys; from fedchoir import models; models.build('mlp@4', 2); assert 'timm' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


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
