"""On a GPU, users' modules get channels-last weights where they compute the same with them, and only there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.models.model_checks import images
from tests.models.own_models import Convolutional, HuggingFaceStyle, PlainNet, TwoInputs
from torch import Tensor, nn

from fedchoir.models import Model, laid_out
from fedchoir.models.adapter import AdaptedModel
from fedchoir.models.projection import ProjectedModel
from fedchoir.models.spec import ModelSpec
from fedchoir.utils.input_spec import IMAGES_32, InputSpec

PAIR = InputSpec("tensor", (3 * 8 * 8 + 5,), tensors=((3, 8, 8), (5,)))


def adapted(net: nn.Module, options: str = "", inputs: InputSpec = IMAGES_32) -> AdaptedModel:
    return AdaptedModel(ModelSpec.parse(f"mine.py:net{options}"), net, 10, inputs)


class _Refusing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:
        return d.clone().view(-1).view(d.shape)


class Changed(Convolutional):
    """``Convolutional`` with something after its first layer."""

    def __init__(self, change: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        h = self.change(self, self.stem(x))
        return self.head(torch.flatten(self.pool(self.body(h)), 1))


def by_memory(_: nn.Module, h: Tensor) -> Tensor:
    """Another result for each layout: numbers in the order in which they are in memory."""
    return torch.as_strided(h, (h.numel(),), (1,)).reshape(h.shape)


def in_training(net: nn.Module, h: Tensor) -> Tensor:
    return h.view(len(h), -1).view(h.shape) if net.training else h


class Volumes(Convolutional):
    """A filter of five dimensions, which have no channels-last layout of four."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = nn.Conv3d(1, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.deep(x[:, None])[:, 0])


FORMATS: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "convolutional": (Convolutional, True),
    "patches": (HuggingFaceStyle, True),
    "frozen": (lambda: Convolutional().requires_grad_(False), True),
    "without convolutions": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)), False),
    "view of a map": (PlainNet, False),
    "view in training": (lambda: Changed(in_training), False),
    "view in the backward pass": (lambda: Changed(lambda _, h: _Refusing.apply(h)), False),
    "another result": (lambda: Changed(by_memory), False),
    "volumes": (Volumes, False),
}


@pytest.fixture
def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users' modules get the layout that they have on a GPU."""
    monkeypatch.setattr(AdaptedModel, "memory_format", property(lambda model: model._gpu_format))


@pytest.mark.usefixtures("as_on_gpu")
@pytest.mark.parametrize("name", FORMATS)
def test_the_layout_is_what_the_module_allows(name: str) -> None:
    make, channels_last = FORMATS[name]
    model = adapted(make())
    assert model.memory_format is (torch.channels_last if channels_last else torch.contiguous_format)
    weights = [p for p in laid_out(model).parameters() if p.ndim == 4]
    assert all(p.is_contiguous(memory_format=model.memory_format) for p in weights)


@pytest.mark.parametrize("projected", [False, True])
def test_on_a_cpu_weights_stay_contiguous(projected: bool) -> None:
    model: Model = adapted(Convolutional())
    model = laid_out(ProjectedModel(model, 4) if projected else model)
    assert model.memory_format is torch.contiguous_format
    assert all(p.is_contiguous() for p in model.parameters())


@pytest.mark.usefixtures("as_on_gpu")
def test_samples_of_several_tensors_get_it_too() -> None:
    assert adapted(TwoInputs(10, PAIR.tensors), inputs=PAIR).memory_format is torch.channels_last


@pytest.mark.usefixtures("as_on_gpu")
def test_what_stays_in_evaluation_mode_is_tried_in_evaluation_mode() -> None:
    assert adapted(Changed(in_training), "[train=head]").memory_format is torch.channels_last


def test_the_search_changes_neither_the_module_nor_the_random_numbers() -> None:
    net = Convolutional()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    state = torch.random.get_rng_state()
    assert adapted(net)._gpu_format is torch.channels_last
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
    assert all(p.is_contiguous() and p.grad is None for p in net.parameters())


def one_step(model: Model, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    z = model(x)
    z.square().mean().backward()
    return [z.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.usefixtures("as_on_gpu")
@pytest.mark.parametrize("projected", [False, True])
def test_a_step_is_the_same_in_both_layouts(projected: bool) -> None:
    torch.manual_seed(0)
    net = Convolutional()
    net.dropout = nn.Dropout(0.0)
    model: Model = adapted(net)
    if projected:
        model = ProjectedModel(model, 4)
        assert model.watched_modules() == model.backbone.watched_modules() != []
    x = images(8)
    expected = one_step(model, x)
    assert laid_out(model).memory_format is torch.channels_last
    for given in (x, x.contiguous(memory_format=torch.channels_last)):
        for mine, theirs in zip(one_step(model, given), expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
