"""ResNets: parameter counts, dimensions, GroupNorm."""

from __future__ import annotations

import pytest
import torch
from tests.models.model_checks import built, images, parameters


@pytest.mark.parametrize(
    ("name", "count"), [("resnet10", 4_903_242), ("resnet18", 11_173_962), ("resnet34", 21_282_122)]
)
def test_parameter_counts(name: str, count: int) -> None:
    assert parameters(built(name)) == count


@pytest.mark.parametrize(("name", "side"), [("resnet10@4", 4), ("resnet18@4", 4), ("resnet20@4", 8)])
def test_side_of_the_map_at_32(name: str, side: int) -> None:
    with torch.no_grad():
        assert built(name).eval().feature_map(images(1)).shape[2:] == (side, side)


@pytest.mark.parametrize(
    ("name", "map_dim", "feature_dim"), [("resnet10@16", 128, 128), ("resnet18@16", 128, 128), ("resnet20@8", 32, 32)]
)
def test_width_sets_the_dimensions(name: str, map_dim: int, feature_dim: int) -> None:
    model = built(name)
    assert (model.map_dim, model.feature_dim) == (map_dim, feature_dim)


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


def test_map_of_a_convolutional_model_pools_to_its_features() -> None:
    model = built("resnet10@4").eval()
    torch.testing.assert_close(model.feature_map(images()).mean((2, 3)), model.features(images()))
