"""Models given as Python objects."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedchoir.models import objects
from fedchoir.utils.errors import UsageError


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 3), nn.BatchNorm1d(3).to(torch.bfloat16))


def test_the_same_content_has_the_same_name() -> None:
    assert objects.register(network()) == objects.register(network())
    assert objects.register(network()) != objects.register(network(1))


def test_the_code_of_the_forward_pass_is_part_of_the_name() -> None:
    class Net(nn.Linear):
        pass

    one = Net(2, 2)
    name = objects.register(one)

    class Other(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return -super().forward(x)

    Other.__name__ = "Net"
    two = Other(2, 2)
    two.load_state_dict(one.state_dict())
    assert objects.register(two) != name


def test_copies_do_not_follow_the_original() -> None:
    net = network()
    name = objects.register(net)
    with torch.no_grad():
        net[1].weight.zero_()
    assert objects.get(name)[1].weight.abs().sum() > 0  # type: ignore[index]
    assert objects.get(name) is not objects.get(name)


def test_an_object_of_another_process_is_one_line() -> None:
    with pytest.raises(UsageError, match=r"'object:Net-00000000' was a Python object .* FILE.py:FACTORY"):
        objects.get("object:Net-00000000")


def test_lazy_layers_must_be_used_once_before() -> None:
    with pytest.raises(UsageError, match="lazy layers"):
        objects.register(nn.Sequential(nn.LazyLinear(3)))
