"""MobileNetV2 and EfficientNet-B0: torchvision's parameter counts, smaller strides."""

from __future__ import annotations

import pytest
import torch
from tests.models.model_checks import built, images, parameters


@pytest.mark.parametrize(("name", "count"), [("mobilenet_v2", 2_236_682), ("efficientnet_b0", 4_020_358)])
def test_parameter_counts(name: str, count: int) -> None:
    assert parameters(built(name)) == count


@pytest.mark.parametrize(("name", "side"), [("mobilenet_v2@0.25", 4), ("efficientnet_b0@0.25", 2)])
def test_side_of_the_map_at_32(name: str, side: int) -> None:
    with torch.no_grad():
        assert built(name).eval().feature_map(images(1)).shape[2:] == (side, side)


@pytest.mark.parametrize(
    ("name", "map_dim", "feature_dim"), [("mobilenet_v2@0.25", 1280, 1280), ("efficientnet_b0@0.25", 320, 320)]
)
def test_width_sets_the_dimensions(name: str, map_dim: int, feature_dim: int) -> None:
    model = built(name)
    assert (model.map_dim, model.feature_dim) == (map_dim, feature_dim)
