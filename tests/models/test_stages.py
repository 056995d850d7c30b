"""Feature map, features and logits in one pass are those of three passes."""

from __future__ import annotations

import pytest
import torch

from fedchoir.models import build

NAMES = ("resnet10@4", "simple_cnn@4", "mlp", "mobilenet_v2@0.25", "timm:resnet18", "timm:vit_tiny_patch16_224")


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
