"""Models for tables: features, logits, widths, and that they learn."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedchoir.models import build, names
from fedchoir.utils.errors import UsageError
from fedchoir.utils.input_spec import InputSpec
from fedchoir.utils.rng import seeded

TABLE = InputSpec("table", (13,))
NAMES = ("ft_transformer", "logistic", "mlp", "res_mlp")


def test_names_of_tables_and_of_images_do_not_collide() -> None:
    assert tuple(names("table")) == NAMES
    assert {"mlp", "logistic"} <= set(names())
    assert build("mlp", 2).features(torch.zeros(2, 3, 32, 32)).shape != build("mlp", 2, TABLE).feature_dim


@pytest.mark.parametrize("name", [*NAMES, "mlp@8", "res_mlp@8", "ft_transformer@6"])
def test_features_and_logits(name: str) -> None:
    model = build(name, 3, TABLE)
    x = torch.randn(5, 13)
    model.eval()
    h, z = model.features_and_logits(x)
    assert h.shape == (5, model.feature_dim)
    assert z.shape == (5, 3)
    assert torch.allclose(model(x), z, atol=1e-5)
    assert torch.allclose(model.classify(h), z, atol=1e-5)
    assert model.map_dim == 0
    with pytest.raises(UsageError, match="needs a feature map"):
        model.feature_map(x)


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_learns(name: str) -> None:
    with seeded(0, "test"):
        model = build(name, 2, TABLE)
        x = torch.randn(96, 13)
    y = (x[:, 0] + x[:, 1] > 0).long()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(100):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    model.eval()
    assert (model(x).argmax(1) == y).float().mean() > 0.9


def test_a_model_for_images_is_refused() -> None:
    with pytest.raises(UsageError, match="resnet18"):
        build("resnet18", 2, TABLE)
