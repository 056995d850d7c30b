"""timm models behind the common interface."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from tests.models.model_checks import built, check_interface, images

TIMM = [
    "timm:convnext_atto",
    "timm:resnet18",
    "timm:mobilenetv3_small_100",
    "timm:vit_tiny_patch16_224",
    "timm:efficientnet_lite0",
]


@pytest.mark.parametrize(("name", "side"), [("timm:vit_tiny_patch16_224", 2), ("timm:convnext_atto", 1)])
def test_side_of_the_map_at_32(name: str, side: int) -> None:
    with torch.no_grad():
        assert built(name).eval().feature_map(images(1)).shape[2:] == (side, side)


@pytest.mark.parametrize("name", TIMM)
def test_timm_models_keep_the_interface(name: str) -> None:
    model = built(name, num_classes=3)
    assert model.training
    check_interface(model, images(2))


def test_tokens_go_back_to_their_places() -> None:
    """Row 1, column 0 of the 2×2 map is the third patch, which follows the class token."""
    model = built("timm:vit_tiny_patch16_224").eval()
    with torch.no_grad():
        tokens = model.trunk.forward_features(images(1))  # type: ignore[operator]
        feature_map = model.feature_map(images(1))
    torch.testing.assert_close(feature_map[0, :, 1, 0], tokens[0, 1 + 2])


def test_timm_is_imported_only_when_asked_for() -> None:
    code = "import sys; from fedchoir import models; models.build('mlp@4', 2); assert 'timm' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
