"""Checks and small inputs that the tests of all models share."""

from __future__ import annotations

import torch

from fedchoir import models
from fedchoir.utils.input_spec import InputSpec


def images(batch: int = 2, size: int = 32, seed: int = 0) -> torch.Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(seed))


def built(name: str, num_classes: int = 10, image_size: int = 32, seed: int = 0) -> models.Model:
    torch.manual_seed(seed)
    return models.build(name, num_classes, InputSpec.image(image_size))


def parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def check_interface(model: models.Model, x: torch.Tensor) -> None:
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
