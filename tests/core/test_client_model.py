"""Forward passes of a client: float32 outputs in every precision, the same numbers by every way."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedchoir.core.client_model import ClientModel
from fedchoir.models import build
from fedchoir.utils.input_spec import InputSpec


def make_model(precision: str = "fp32", name: str = "resnet10@4") -> ClientModel:
    torch.manual_seed(0)
    model = build(name, 4, InputSpec.image(16)).eval()
    return ClientModel(model, {"head": nn.Linear(model.feature_dim, 2)}, torch.device("cpu"), precision)


IMAGES = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_outputs_are_float32_in_every_precision(precision: str) -> None:
    client = make_model(precision)
    h, z = client.features_and_logits(IMAGES)
    outputs = [h, z, *client.stages(IMAGES), client.features(IMAGES), client.classify(h), client.run_module("head", h)]
    assert {t.dtype for t in outputs} == {torch.float32}
    assert z.shape == (5, 4)
    assert client.run_module("head", h).shape == (5, 2)


def test_all_ways_give_the_same_features_and_logits() -> None:
    client = make_model()
    h, z = client.features_and_logits(IMAGES)
    feature_map, features, logits = client.stages(IMAGES)
    assert feature_map.dim() == 4
    for one, two in ((h, features), (h, client.features(IMAGES)), (z, logits), (z, client.logits(IMAGES))):
        assert torch.equal(one, two)
    torch.testing.assert_close(client.classify(h), z)


def test_bf16_rounds_and_fp32_does_not() -> None:
    exact, rounded = make_model("fp32").logits(IMAGES), make_model("bf16").logits(IMAGES)
    assert not torch.equal(exact, rounded)
    torch.testing.assert_close(exact, rounded, rtol=0.1, atol=0.1)


def test_parameters_are_those_that_are_trained() -> None:
    client = make_model()
    everything = [*client.model.parameters(), *client.modules.parameters()]
    assert [id(p) for p in client.parameters()] == [id(p) for p in everything]
    client.model.requires_grad_(False)
    assert [p.shape for p in client.parameters()] == [(2, client.model.feature_dim), (2,)]


def test_the_trunk_may_have_its_own_learning_rate() -> None:
    """The order of the parameters is that of their groups: states of optimisers are numbered by it."""
    client = make_model(name="resnet10@4[trunk_lr=0.1]")
    trunk, head = client.parameter_groups()
    assert (trunk.lr_factor, head.lr_factor) == (0.1, 1.0)
    assert [id(p) for p in trunk.parameters] == [id(p) for p in client.model.encoder_parameters()]
    assert len(head.parameters) == 2 + 2
    assert [id(p) for p in client.parameters()] == [id(p) for p in (*trunk.parameters, *head.parameters)]
    frozen = make_model(name="resnet10@4[trunk_lr=0.1,train=head]")
    (only,) = frozen.parameter_groups()
    assert len(only.parameters) == 2 + 2
