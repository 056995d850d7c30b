"""Models from the user's own files and packages."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch
from tests.models.model_checks import check_interface, images

from fedchoir import models
from fedchoir.utils.errors import UsageError
from fedchoir.utils.input_spec import InputSpec

NET = """
    import torch
    from torch import nn
    from my_layers import block

    class Net(nn.Module):
        def __init__(self, num_classes, input_shape):
            super().__init__()
            self.body = block(input_shape[0])
            self.fc = nn.Linear(4, num_classes)

        def forward(self, x):
            return self.fc(self.body(x))

    def build(num_classes=10):
        return Net(num_classes, (3, 0, 0))

    def fixed():
        return Net(5, (3, 0, 0))

    def broken(num_classes):
        raise OSError("no such table\\nsecond line")

    def text():
        return "a network"

    ready = Net(10, (3, 0, 0))
"""
LAYERS = """
    from torch import nn

    def block(channels):
        return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "my_layers.py").write_text(textwrap.dedent(LAYERS))
    path = tmp_path / "my_net.py"
    path.write_text(textwrap.dedent(NET))
    return path


@pytest.mark.parametrize("factory", ["build", "Net", "fixed", "ready"])
def test_a_file_with_a_function_a_class_or_a_module(file: Path, factory: str) -> None:
    model = models.build(f"{file}:{factory}", 10)
    assert model.name == f"{file}:{factory}"
    assert bool(model.notes) == (factory == "fixed")
    check_interface(model, images(2))


def test_the_seed_alone_decides_the_weights(file: Path) -> None:
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        states.append(models.build(f"{file}:build", 10).state_dict()["net.fc.weight"])
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_a_package_whose_factories_take_keywords() -> None:
    model = models.build("torchvision.models:resnet18", 4, InputSpec.image(16))
    assert (model.num_classes, model.feature_dim, model.notes) == (4, 512, ())


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("{}:bild", ["nothing called 'bild'"]),
        ("{}:broken", ["the factory failed", "OSError: no such table"]),
        ("{}:text", ["returned str"]),
        ("none.py:build", ["none.py", "not there"]),
        ("no.such.package:build", ["no.such.package"]),
        ("custom:my_net.build", ["another site"]),
        ("object:Net-00000000", ["Python object"]),
        ("{}:build[train=some]", ["train", "'all' or 'head'"]),
    ],
)
def test_what_cannot_be_built_is_one_line(file: Path, name: str, parts: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        models.build(name.format(file), 10)
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("name", ["{}:build", "resnet10@4", "timm:mobilenetv3_small_050", "mlp@8"])
def test_a_frozen_trunk_stays_as_it_is(file: Path, name: str) -> None:
    """Weights, BatchNorm's statistics and the features of a training step do not change; the head learns."""
    model = models.build(f"{name.format(file)}[train=head]", 3).train()
    head = {id(p) for module in model.head_modules() for p in module.parameters()}
    before = {key: t.clone() for key, t in model.state_dict().items()}
    features = model.features(images(4)).clone()
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        model.train()(images(4)).square().sum().backward()
        optimiser.step()
    names = {name for name, p in model.named_parameters() if id(p) in head}
    for key, t in model.state_dict().items():
        assert torch.equal(t, before[key]) == (key not in names), key
    assert torch.equal(model.features(images(4)), features)
