"""Networks for series."""

import pytest
import torch
from tests.models.model_checks import check_interface

from fedchoir.models import build, names
from fedchoir.utils.errors import UsageError
from fedchoir.utils.input_spec import InputSpec


@pytest.mark.parametrize("shape", [(9, 128), (1, 1), (2, 13)])
@pytest.mark.parametrize("name", ["cnn1d@8", "gru@6", "transformer@10"])
def test_interface(name: str, shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    model = build(name, 5, InputSpec("series", shape))
    check_interface(model, torch.randn(3, *shape))
    assert model.feature_map(torch.randn(3, *shape)).shape[2] == 1


@pytest.mark.parametrize("name", ["cnn1d@8", "gru@8", "transformer@8"])
def test_every_parameter_gets_a_gradient_and_time_matters(name: str) -> None:
    torch.manual_seed(0)
    model = build(name, 4, InputSpec("series", (3, 32)))
    x = torch.randn(6, 3, 32)
    model(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    model.eval()
    with torch.no_grad():
        assert not torch.allclose(model(x), model(x.flip(2)), atol=1e-4)


def test_names() -> None:
    assert names("series") == ["cnn1d", "gru", "transformer"]
    with pytest.raises(UsageError, match="model 'vgg9' is not for series samples; these are: cnn1d, gru, transformer"):
        build("vgg9", 4, InputSpec("series", (3, 32)))
