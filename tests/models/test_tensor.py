"""Models for samples of which only the shape is known."""

import pytest
import torch

from fedchoir.models import build, names
from fedchoir.utils.errors import UsageError
from fedchoir.utils.input_spec import InputSpec


@pytest.mark.parametrize("name", ["mlp@8", "logistic"])
@pytest.mark.parametrize("shape", [(5,), (2, 3, 4)])
def test_all_values_in_one_vector(name: str, shape: tuple[int, ...]) -> None:
    model = build(name, 3, InputSpec("tensor", shape))
    x = torch.randn(4, *shape)
    assert model(x).shape == (4, 3)
    assert model.features(x).shape == (4, model.feature_dim)
    with pytest.raises(UsageError, match="feature map"):
        model.feature_map(x)
    assert names("tensor") == ["logistic", "mlp"]
