"""Model names, widths and errors."""

from __future__ import annotations

import pytest
import torch
from tests.models.model_checks import built, parameters

from fedchoir import models
from fedchoir.utils.errors import UsageError
from fedchoir.utils.input_spec import InputSpec

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
TIMM = [
    "timm:convnext_atto",
    "timm:resnet18",
    "timm:mobilenetv3_small_100",
    "timm:vit_tiny_patch16_224",
    "timm:efficientnet_lite0",
]


@pytest.mark.parametrize("name", ["resnet10", "mobilenet_v2", "googlenet", "vgg9", "mlp"])
def test_the_default_width_written_out_is_the_same_model(name: str) -> None:
    width = {"resnet10": "64", "vgg9": "32", "mlp": "200"}.get(name, "1")
    assert parameters(built(f"{name}@{width}")) == parameters(built(name))


@pytest.mark.parametrize("name", [*NARROW, "timm:vit_tiny_patch16_224"])
def test_the_seed_alone_decides_the_weights(name: str) -> None:
    first, second, different = (built(name, seed=seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert any(not torch.equal(first[key], different[key]) for key in first)


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
        models.build("simple_cnn", classes, InputSpec.image(size))
