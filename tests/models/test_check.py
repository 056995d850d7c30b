"""Measuring a model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedchoir.models import objects
from fedchoir.models.check import check_model, inputs_text, parse_inputs
from fedchoir.utils.errors import UsageError
from fedchoir.utils.input_spec import InputSpec


def test_what_a_small_network_needs() -> None:
    """Counted by hand: the backward pass of Linear → ReLU → Linear needs the input and the ReLU's output."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 5), nn.ReLU(), nn.Linear(5, 3))
    found = check_model(objects.register(net), 3, InputSpec.image(4), batch=8)
    assert found.parameters == found.trained == 48 * 5 + 5 + 5 * 3 + 3
    assert found.weight_bytes == 4 * found.parameters
    assert (found.feature_dim, found.map_shape) == (5, ())
    assert found.activation_bytes == 4 * (48 + 5)
    assert found.step_seconds > 0


def test_a_frozen_trunk_stores_nothing_for_the_backward_pass() -> None:
    name = "resnet10@4"
    whole, head = (check_model(f"{name}{options}", 4, InputSpec.image(16)) for options in ("", "[train=head]"))
    assert head.trained == 32 * 4 + 4 < whole.trained == whole.parameters
    assert head.activation_bytes < whole.activation_bytes / 10
    assert whole.map_shape == (32, 2, 2)


def test_the_check_draws_nothing_from_the_global_generator() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    check_model("mlp@4", 2, InputSpec.image(16), batch=2)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("text", ["", "3x", "0x4", "images", "text:5", "pictures:3x4x5", "3x-1x4"])
def test_a_wrong_input_is_one_line(text: str) -> None:
    with pytest.raises(UsageError, match=r"--input .* 3x32x32 \(images\)"):
        parse_inputs(text)


def test_a_tensor_of_any_shape() -> None:
    assert parse_inputs("tensor:4") == InputSpec("tensor", (4,))
    assert parse_inputs("2x3x4x5") == InputSpec("tensor", (2, 3, 4, 5))


@pytest.mark.parametrize(
    "text",
    ["3x16x24", "13", "9x128", "text:50x20000", "tensor:4x5", "tensor:7", "tensor:1x16x16+3", "image:4", "table:2x3"],
)
def test_a_shape_as_text_is_read_back(text: str) -> None:
    assert inputs_text(parse_inputs(text)) == text


def test_several_shapes_are_tensors() -> None:
    assert parse_inputs("tensor:1x16x16+3") == InputSpec("tensor", (259,), tensors=((1, 16, 16), (3,)))
    for text in ("3x4+2", "text:3+2", "tensor:3+", "tensor:3+x"):
        with pytest.raises(UsageError, match="is not possible: it should be 3x32x32"):
            parse_inputs(text)
