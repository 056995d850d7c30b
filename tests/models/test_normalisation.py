"""Which weights belong to normalisation layers."""

from __future__ import annotations

import pytest
import timm
from torch import nn

from fedchoir.models import build
from fedchoir.models.normalisation import normalisation_names


@pytest.mark.parametrize("name", ["resnet10@4", "resnet10_gn@16", "vgg9@4", "timm:convnext_atto"])
def test_the_layers_are_those_that_their_kind_names(name: str) -> None:
    model = build(name, 3)
    found = set(normalisation_names(model))
    assert found <= set(model.state_dict())
    for prefix, module in model.named_modules():
        tensors = {f"{prefix}.{n}" for n, _ in module.named_parameters(recurse=False)}
        tensors |= {f"{prefix}.{n}" for n, _ in module.named_buffers(recurse=False)}
        assert not tensors or ("Norm" in type(module).__name__) == (tensors <= found), prefix


def test_layers_derived_from_pytorchs_count() -> None:
    layer = timm.layers.BatchNormAct2d(4)
    names = set(normalisation_names(nn.Sequential(nn.Conv2d(3, 4, 1), layer)))
    assert names == {"1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert set(normalisation_names(nn.LayerNorm(2))) == {"weight", "bias"}
    assert list(normalisation_names(build("simple_cnn@4", 3))) == []
