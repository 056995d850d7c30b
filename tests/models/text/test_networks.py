"""Encoders of token ids."""

import pytest
import torch
from tests.models.model_checks import check_interface

from fedchoir.models import build, names
from fedchoir.utils.input_spec import InputSpec

NAMES = ("bag_of_embeddings@8", "textcnn@6", "bigru@6", "transformer@8")
TOKENS = torch.tensor([[5, 6, 7, 8, 0, 0], [9, 0, 0, 0, 0, 0], [1, 2, 3, 4, 5, 6]])


def built(name: str, length: int = 6) -> torch.nn.Module:
    torch.manual_seed(0)
    return build(name, 3, InputSpec("text", (length,), vocabulary=20))


@pytest.mark.parametrize("name", NAMES)
def test_interface(name: str) -> None:
    check_interface(built(name), TOKENS)  # type: ignore[arg-type]
    check_interface(built(name), torch.zeros(2, 6, dtype=torch.int64))  # type: ignore[arg-type]  # empty texts


@pytest.mark.parametrize("name", NAMES)
def test_the_feature_map_is_zero_at_padding(name: str) -> None:
    found = built(name).eval().feature_map(TOKENS)[:, :, 0]  # type: ignore[operator]
    assert not found[0, :, 4:].any()
    assert found[0, :, :4].abs().sum() > 0


@pytest.mark.parametrize("name", ["bag_of_embeddings@8", "transformer@8"])
def test_features_do_not_depend_on_the_amount_of_padding(name: str) -> None:
    model = built(name, length=6).eval()
    if name.startswith("transformer"):
        shorter = build(name, 3, InputSpec("text", (4,), vocabulary=20)).eval()
        state = model.state_dict()
        state["trunk.positions"] = state["trunk.positions"][:4]
        shorter.load_state_dict(state)
    else:
        shorter = model
    one, two = model.features(TOKENS[:1]), shorter.features(TOKENS[:1, :4])  # type: ignore[operator]
    assert torch.allclose(one, two, atol=1e-5)


def test_a_bag_is_the_mean_of_the_embeddings() -> None:
    model = built("bag_of_embeddings@8")
    weight = model.trunk.embedding.weight  # type: ignore[union-attr, operator]
    assert torch.allclose(model.features(TOKENS[:1])[0], weight[[5, 6, 7, 8]].mean(dim=0), atol=1e-6)  # type: ignore


@pytest.mark.parametrize("name", NAMES[1:])
def test_the_order_of_words_matters_to_all_but_the_bag(name: str) -> None:
    with torch.no_grad():
        for model, differs in ((built(name).eval(), True), (built(NAMES[0]).eval(), False)):
            one, two = model(TOKENS[2:]), model(TOKENS[2:].flip(1))
            assert torch.allclose(one, two, atol=1e-5) is not differs


def test_names() -> None:
    assert names("text") == ["bag_of_embeddings", "bigru", "textcnn", "transformer"]
