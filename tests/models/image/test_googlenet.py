"""GoogLeNet: torchvision's parameter count with a 3×3 stem, total stride 8; that of FCCL's code, total stride 4."""

from __future__ import annotations

import pytest
import torch
from tests.models.model_checks import built, images, parameters


@pytest.mark.parametrize(
    ("name", "count"), [("googlenet", 5_610_154 - 64 * 3 * (7 * 7 - 3 * 3)), ("googlenet_cifar", 6_166_250)]
)
def test_parameter_counts(name: str, count: int) -> None:
    assert parameters(built(name)) == count


@pytest.mark.parametrize(("name", "side"), [("googlenet@0.125", 4), ("googlenet_cifar@0.125", 8)])
def test_side_of_the_map_at_32(name: str, side: int) -> None:
    with torch.no_grad():
        assert built(name).eval().feature_map(images(1)).shape[2:] == (side, side)


@pytest.mark.parametrize(
    ("name", "map_dim", "feature_dim"), [("googlenet@0.25", 256, 256), ("googlenet_cifar@0.25", 256, 256)]
)
def test_width_sets_the_dimensions(name: str, map_dim: int, feature_dim: int) -> None:
    model = built(name)
    assert (model.map_dim, model.feature_dim) == (map_dim, feature_dim)
