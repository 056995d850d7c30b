"""VGG-9, AlexNet and the small networks of the federated papers: parameter counts and dimensions."""

from __future__ import annotations

import pytest
import torch
from tests.models.model_checks import built, images, parameters


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("vgg9", 3_492_394),
        ("logistic", 3 * 32 * 32 * 10 + 10),
        ("mlp", 3072 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10),
        ("simple_cnn", 75 * 32 + 32 + 800 * 64 + 64 + 1600 * 512 + 512 + 512 * 10 + 10),
        ("cnn2", 27 * 32 + 32 + 288 * 64 + 64 + 12544 * 128 + 128 + 128 * 10 + 10),
    ],
)
def test_parameter_counts(name: str, count: int) -> None:
    assert parameters(built(name)) == count


@pytest.mark.parametrize(
    ("name", "side"), [("vgg9@4", 4), ("alexnet@8", 2), ("simple_cnn@8", 5), ("cnn2@4", 14), ("logistic", 32)]
)
def test_side_of_the_map_at_32(name: str, side: int) -> None:
    with torch.no_grad():
        assert built(name).eval().feature_map(images(1)).shape[2:] == (side, side)


@pytest.mark.parametrize(
    ("name", "map_dim", "feature_dim"),
    [("vgg9@16", 128, 256), ("alexnet@16", 64, 256), ("simple_cnn@8", 16, 128), ("cnn2@8", 16, 32), ("mlp@50", 3, 50)],
)
def test_width_sets_the_dimensions(name: str, map_dim: int, feature_dim: int) -> None:
    model = built(name)
    assert (model.map_dim, model.feature_dim) == (map_dim, feature_dim)
