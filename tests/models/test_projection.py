"""Models with a common feature width."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedchoir.models import build
from fedchoir.models.projection import ProjectedModel
from fedchoir.models.spec import ModelSpec
from fedchoir.utils.errors import UsageError
from fedchoir.utils.input_spec import InputSpec

IMAGES = InputSpec.image(16)


@pytest.mark.parametrize("name", ["resnet10@4", "mlp@16", "timm:convnext_atto"])
@pytest.mark.parametrize("projection", ["linear", "pooled"])
def test_all_architectures_get_one_width(name: str, projection: str) -> None:
    inputs = InputSpec.image(32)
    model = ProjectedModel(build(name, 5, inputs), 12, projection).eval()  # type: ignore[arg-type]
    x = torch.randn(3, 3, 32, 32)
    h, z = model.features_and_logits(x)
    assert (h.shape, z.shape, model.feature_dim) == ((3, 12), (3, 5), 12)
    assert torch.equal(model(x), z)
    assert torch.equal(model.encoder()(x), h)
    learned = {name for name, _ in model.projection.named_parameters()}
    assert learned == ({"weight", "bias"} if projection == "linear" else set())


def test_pooled_features_are_averages_of_neighbours() -> None:
    model = ProjectedModel(build("mlp@12", 5, IMAGES), 4, "pooled")
    x = torch.randn(2, 3, 16, 16)
    own = model.backbone.features(x)
    assert torch.allclose(model.features(x), own.reshape(2, 4, 3).mean(dim=2), atol=1e-6)


def test_equal_widths_need_no_projection() -> None:
    model = ProjectedModel(build("mlp@12", 5, IMAGES), 12)
    assert isinstance(model.projection, nn.Identity)


def test_a_frozen_backbone_leaves_projection_and_head_to_learn() -> None:
    model = build("resnet10@4", 5, IMAGES)
    model.train_head_only()
    projected = ProjectedModel(model, 12)
    learning = {name for name, p in projected.named_parameters() if p.requires_grad}
    assert learning == {"projection.weight", "projection.bias", "head.weight", "head.bias"}


def test_the_map_and_its_gradient_are_those_of_the_whole_model() -> None:
    torch.manual_seed(0)
    model = ProjectedModel(build("resnet10@4", 5, IMAGES), 12).eval()
    x, classes = torch.randn(2, 3, 16, 16), torch.tensor([1, 4])
    m, gradient = model.map_and_gradient(x, classes)
    step = 1e-3 * gradient.sign()
    before = model.classify(model.projection(model.backbone.neck(m)))
    after = model.classify(model.projection(model.backbone.neck(m + step)))
    change = (after - before).gather(1, classes[:, None]).squeeze(1)
    assert torch.allclose(change, (gradient * step).sum(dim=(1, 2, 3)), rtol=1e-2, atol=1e-5)


def test_an_unknown_projection_is_one_line() -> None:
    with pytest.raises(UsageError, match="projection = 'none': it should be linear or pooled"):
        ProjectedModel(build("mlp@12", 5, IMAGES), 4, "none")  # type: ignore[arg-type]


def test_a_model_name_may_ask_for_moons_projection_head() -> None:
    """Features after ReLU are not negative; behind the head they have both signs and the width that was asked for."""
    x = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    plain, signed = build("resnet10@4", 5).eval(), build("resnet10@4[projection=6]", 5).eval()
    assert (plain.features(x) >= 0).all()
    h = signed.features(x)
    assert h.shape == (16, 6)
    assert signed.feature_dim == 6
    assert (h < 0).any()
    assert (h > 0).any()
    assert signed(x).shape == (16, 5)
    assert ModelSpec.parse(signed.name).architecture == "resnet10@4[projection=6]"
    with pytest.raises(UsageError, match="projection"):
        build("resnet10@4[projection=1]", 5)
