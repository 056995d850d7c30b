"""MobileNetV2 and EfficientNet-B0: torchvision's parameter counts, smaller strides."""

from __future__ import annotations

import pytest
import torch
from tests.models.model_checks import built, images, parameters

UNUSED = 32 * 32 + 2 * 32  # the first block's expansion in FCCL's released code, which no sample passes


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("mobilenet_v2", 2_236_682),
        ("efficientnet_b0", 4_020_358),
        ("efficientnet_b0_cifar", 3_599_686 - UNUSED),
        # without the last convolution with its BatchNorm, and a head of 320 instead of 1280 features
        ("efficientnet_b0_cifar", 4_020_358 - (320 * 1280 + 2 * 1280) - 10 * (1280 - 320)),
    ],
)
def test_parameter_counts(name: str, count: int) -> None:
    assert parameters(built(name)) == count


@pytest.mark.parametrize(
    ("name", "side"), [("mobilenet_v2@0.25", 4), ("efficientnet_b0@0.25", 2), ("efficientnet_b0_cifar@0.25", 2)]
)
def test_side_of_the_map_at_32(name: str, side: int) -> None:
    with torch.no_grad():
        assert built(name).eval().feature_map(images(1)).shape[2:] == (side, side)


@pytest.mark.parametrize(
    ("name", "map_dim", "feature_dim"),
    [
        ("mobilenet_v2@0.25", 1280, 1280),
        ("efficientnet_b0@0.25", 320, 320),
        ("efficientnet_b0_cifar@0.25", 80, 80),
        ("efficientnet_b0_cifar", 320, 320),
    ],
)
def test_width_sets_the_dimensions(name: str, map_dim: int, feature_dim: int) -> None:
    model = built(name)
    assert (model.map_dim, model.feature_dim) == (map_dim, feature_dim)


def test_the_released_variant_has_no_stochastic_depth() -> None:
    """In training, two passes differ by dropout in the head alone: the trunk is a fixed function of the batch."""
    trunks = {name: built(name).train() for name in ("efficientnet_b0@0.25", "efficientnet_b0_cifar@0.25")}
    with torch.no_grad():
        same = {name: torch.equal(m.feature_map(images(8)), m.feature_map(images(8))) for name, m in trunks.items()}
    assert same == {"efficientnet_b0@0.25": False, "efficientnet_b0_cifar@0.25": True}
