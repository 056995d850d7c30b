"""Any nn.Module behind the common interface."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import timm
import torch
import torchvision
from tests.models.model_checks import check_interface, images
from tests.models.own_models import (
    Convolutional,
    HuggingFaceStyle,
    PlainNet,
    Returning,
    TextMasked,
    TwoInputs,
    WithMethods,
)
from torch import Tensor, nn

from fedchoir.models.adapter import AdaptedModel
from fedchoir.models.spec import ModelSpec
from fedchoir.utils.errors import UsageError
from fedchoir.utils.input_spec import IMAGES_32, InputSpec

PAIR = InputSpec("tensor", (3 * 8 * 8 + 5,), tensors=((3, 8, 8), (5,)))


def adapted(net: nn.Module, options: str = "", classes: int = 10, inputs: InputSpec = IMAGES_32) -> AdaptedModel:
    return AdaptedModel(ModelSpec.parse(f"mine.py:net[{options}]" if options else "mine.py:net"), net, classes, inputs)


def random_(net: nn.Module) -> nn.Module:
    """With every weight drawn: torchvision's vit starts with a head of zeros."""
    torch.manual_seed(0)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape) * 0.1)
    return net


VIT = torchvision.models.VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=10)
NETS: dict[str, tuple[nn.Module, int, int]] = {  # feature width, channels of the map
    "plain": (PlainNet(), 20, 8),
    "convolutional": (Convolutional(), 6, 6),
    "methods": (WithMethods(), 6, 6),
    "hugging face": (HuggingFaceStyle(), 8, 8),
    "torchvision resnet18": (torchvision.models.resnet18(num_classes=10), 512, 512),
    "torchvision vit": (VIT, 16, 16),
    "timm convnext_atto": (timm.create_model("convnext_atto", num_classes=10), 320, 320),
}


@pytest.mark.parametrize("name", NETS)
def test_unknown_modules_keep_the_interface(name: str) -> None:
    net, width, channels = NETS[name]
    model = adapted(random_(copy.deepcopy(net)))
    assert (model.feature_dim, model.map_dim) == (width, channels)
    assert model.training
    assert not model.notes or name == "plain"
    check_interface(model, images(2))
    with torch.no_grad():
        m, h, z = model.eval().stages(images(2))
        torch.testing.assert_close(h, model.features(images(2)))
        torch.testing.assert_close(m, model.feature_map(images(2)))
        torch.testing.assert_close(z, model(images(2)))


def test_vit_b_16_at_a_small_image_size() -> None:
    model = adapted(torchvision.models.vit_b_16(image_size=32, num_classes=4), classes=4)
    assert (model.feature_dim, model.map_dim) == (768, 768)
    assert model.feature_map(images(1)).shape == (1, 768, 2, 2)


@pytest.mark.parametrize("name", NETS)
def test_the_module_computes_what_it_did(name: str) -> None:
    net = random_(copy.deepcopy(NETS[name][0])).eval()
    expected = net(images(2))
    z = adapted(copy.deepcopy(net)).eval()(images(2))
    expected = getattr(expected, "logits", expected)
    torch.testing.assert_close(z.log_softmax(1), expected.log_softmax(1))


def test_probabilities_are_replaced_by_the_logits_before_them() -> None:
    net = PlainNet()
    model = adapted(net).eval()
    assert "log_softmax" in model.notes[0]
    raw = []
    net.fc2.register_forward_hook(lambda *call: raw.append(call[-1]))
    torch.testing.assert_close(model(images(2)), raw[-1])


class Probabilities(WithMethods):
    """Its own ``classify`` ends with a softmax."""

    def classify(self, h: Tensor) -> Tensor:
        return self.head(h).softmax(dim=1)


def _ended(ending: nn.Module, nested: bool) -> nn.Module:
    net = nn.Sequential()
    net.add_module("body", nn.Sequential(nn.Flatten(), nn.Linear(3072, 6), nn.ReLU()))
    layers = [nn.Linear(6, 10), ending]
    net.add_module("end", nn.Sequential(*layers) if nested else layers[0])
    return net if nested else net.append(layers[1])


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("options", ["", "features=body"])
@pytest.mark.parametrize("ending", [nn.Softmax(1), nn.LogSoftmax(-1)])
def test_a_softmax_layer_at_the_end_is_no_part_of_the_head(ending: nn.Module, options: str, nested: bool) -> None:
    net = _ended(ending, nested)
    model = adapted(net, options).eval()
    assert "softmax; the logits before it are used" in model.notes[0]
    linear = [layer for layer in net.modules() if isinstance(layer, nn.Linear)][-1]
    torch.testing.assert_close(model(images(2)), linear(net.body(images(2))))
    torch.testing.assert_close(model.classify(model.features(images(2))), model(images(2)))
    assert model.head_modules() == [linear]
    assert adapted(_ended(ending, nested), options, classes=4).eval()(images(2)).shape == (2, 4)


def test_an_own_method_that_gives_probabilities_is_not_used() -> None:
    model = adapted(Probabilities()).eval()
    assert "ends with softmax" in model.notes[0]
    assert not torch.allclose(model(images(2)).sum(dim=1), torch.ones(2))


class InTraining(nn.Module):
    """Returns a second, auxiliary output in training only."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.aux = Convolutional(), nn.Linear(3072, 10)

    def forward(self, x: Tensor) -> Any:
        z = self.net(x)
        return (z, self.aux(x.flatten(1))) if self.training else z


def test_a_tuple_in_training_only() -> None:
    with pytest.raises(UsageError, match=r"'mine\.py:net', in training: the output is a tuple.*\[output=ENTRY\].*0, 1"):
        adapted(InTraining())
    net = InTraining()
    before, buffers = torch.random.get_rng_state(), copy.deepcopy(list(net.buffers()))
    model = adapted(net, "output=0")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(map(torch.equal, net.buffers(), buffers))
    for training in (True, False):
        assert model.train(training)(images(2)).shape == (2, 10)


class NoTraining(Convolutional):
    def forward(self, x: Tensor) -> Tensor:
        return self.missing(x) if self.training else super().forward(x)


def test_what_fails_in_training_only_is_one_line() -> None:
    net = NoTraining()
    with pytest.raises(UsageError, match=r"model 'mine\.py:net' fails in training: AttributeError"):
        adapted(net)
    assert adapted(net, "train=head").head_modules() == [net.head]


def test_one_pass_has_one_dropout_mask() -> None:
    """The logits are the head of these features, not of those of a second draw."""
    model = adapted(Convolutional()).train()
    h, z = model.features_and_logits(images(8))
    torch.testing.assert_close(model.classify(h), z)
    assert (h == 0).any()
    again, _ = model.features_and_logits(images(8))
    assert not torch.equal(h, again)


def test_statistics_move_once() -> None:
    net = Convolutional()
    model, plain = adapted(copy.deepcopy(net)), copy.deepcopy(net).train()
    model.stages(images(4))
    plain(images(4))
    for mine, expected in zip(model.net.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(mine, expected)


def test_samples_of_several_tensors_are_split() -> None:
    net = TwoInputs(4, PAIR.tensors)
    model = adapted(net, classes=4, inputs=PAIR).eval()
    image, row = torch.randn(2, 3, 8, 8), torch.randn(2, 5)
    x = torch.cat([image.flatten(1), row], dim=1)
    torch.testing.assert_close(model(x), net(image, row))
    assert model.feature_dim == 7


def test_a_text_model_gets_its_mask() -> None:
    inputs = InputSpec("text", (7,), vocabulary=20)
    model = adapted(TextMasked(3, inputs), classes=3, inputs=inputs).eval()
    tokens = torch.tensor([[4, 5, 0, 0, 0, 0, 0], [4, 5, 0, 0, 0, 0, 0]])
    longer = torch.tensor([[4, 5, 4, 5, 0, 0, 0], [4, 5, 4, 5, 0, 0, 0]])
    torch.testing.assert_close(model(tokens), model(longer))
    assert model.feature_dim == 6


@pytest.mark.parametrize(("kind", "entry"), [("tuple", "1"), ("dict", "scores"), ("one", "")])
def test_the_owner_names_the_entry_with_the_logits(kind: str, entry: str) -> None:
    model = adapted(Returning(kind), f"output={entry}" if entry else "")
    check_interface(model, images(2))


@pytest.mark.parametrize(
    ("options", "width"),
    [("features=pool", 6), ("features=body", 6), ("features=dropout", 6), ("features=body.3", 6)],
)
def test_the_owner_names_the_features(options: str, width: int) -> None:
    net = nn.Sequential()
    net.add_module("body", nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3)))
    net.add_module("pool", nn.AdaptiveAvgPool2d(1))
    net.add_module("flatten", nn.Flatten())
    net.add_module("dropout", nn.Dropout(0.2))
    net.add_module("head", nn.Linear(6, 10))
    model = adapted(net, options)
    assert model.feature_dim == width
    check_interface(model, images(2))


def test_features_before_several_layers() -> None:
    net = torchvision.models.AlexNet(num_classes=10)
    net.features = nn.Sequential(nn.Conv2d(3, 256, 3, stride=4))  # its attribute is no method
    net.classifier = nn.Sequential(nn.Dropout(), nn.Linear(256 * 36, 8), nn.ReLU(), nn.Linear(8, 10))
    model = adapted(net, "features=avgpool")
    assert model.feature_dim == 256 * 36
    assert model.head_modules() == [net.classifier]
    check_interface(model, images(1))


def test_the_owner_names_the_feature_map() -> None:
    model = adapted(torchvision.models.resnet18(num_classes=10), "feature_map=layer2")
    assert model.map_dim == 128
    assert model.feature_map(images(2)).shape == (2, 128, 4, 4)


def test_no_feature_map_is_said() -> None:
    model = adapted(nn.Sequential(nn.Flatten(), nn.Linear(3072, 5), nn.ReLU(), nn.Linear(5, 10)))
    assert model.map_dim == 0
    for function in (model.feature_map, model.stages):
        with pytest.raises(UsageError, match=r"'mine.py:net' has none.*\[feature_map=LAYER\]"):
            function(images(2))


def test_a_head_of_another_size_is_replaced() -> None:
    model = adapted(torchvision.models.resnet18(), classes=7)
    assert model.notes == ("model mine.py:net: its head had 1000 outputs and was replaced by one for 7 classes",)
    check_interface(model, images(2))


class NoLinear(nn.Module):
    def __init__(self, outputs: int = 10) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, outputs, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).mean(dim=(2, 3))


class Squared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3072, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.flatten(1)) ** 2


REFUSED: list[tuple[Any, str, list[str]]] = [
    (NoLinear(), "", ["forward_features", "features and classify", "no linear layer", "write the methods features(x)"]),
    (Squared(), "", ["the input of the last linear layer", "do not give the logits", "write the methods features(x)"]),
    (Convolutional(), "features=stem", ["'stem'", "do not give the logits", "[features=LAYER], one of pool, dropout"]),
    (Convolutional(), "features=sten", ["'sten'", "not a layer", "[features=LAYER], one of pool, dropout"]),
    (Convolutional(), "feature_map=head", ["feature_map", "'head'", "B×D×h×w"]),
    (Convolutional(), "feature_map=nothing", ["feature_map", "'nothing'"]),
    (Returning("tuple"), "", ["tuple", "output=ENTRY", "0, 1"]),
    (Returning("dict"), "output=score", ["'score'", "image, scores"]),
    (Returning("nothing"), "", ["NoneType", "output=ENTRY"]),
    (nn.Linear(7, 10), "", ["does not take image samples of 3×32×32", "RuntimeError"]),
    (nn.Conv2d(3, 10, 3), "", ["(3, 10, 30, 30)", "3×10 logits"]),
]


@pytest.mark.parametrize(("net", "options", "parts"), REFUSED)
def test_what_cannot_be_used_is_one_line(net: nn.Module, options: str, parts: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        adapted(net, options)
    assert "\n" not in str(caught.value)
    assert "mine.py:net" in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


def test_a_head_that_cannot_be_replaced_is_one_line() -> None:
    net = WithMethods(7)
    net.head = nn.Sequential(nn.Linear(6, 7), nn.Linear(7, 7), nn.BatchNorm1d(7))
    with pytest.raises(UsageError, match="has 7 outputs"):
        adapted(net)


def test_copies_have_their_own_weights_and_hooks() -> None:
    model = adapted(Convolutional()).eval()
    twin = copy.deepcopy(model)
    before = model.features(images(2))
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    torch.testing.assert_close(twin.features(images(2)), before)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_the_names_of_the_weights_are_those_of_the_module() -> None:
    net = Convolutional()
    model = adapted(net)
    bare = model.bare_names()
    state = {bare[name]: t for name, t in model.state_dict().items()}
    Convolutional().load_state_dict(state)
    assert state.keys() == net.state_dict().keys()


@pytest.mark.parametrize("name", ["convolutional", "methods", "plain"])
def test_an_encoder_has_the_features_and_not_the_head(name: str) -> None:
    model = adapted(copy.deepcopy(NETS[name][0])).eval()
    encoder = model.encoder()
    torch.testing.assert_close(encoder(images(2)), model.features(images(2)))
    for mine, copied in zip(model.encoder_parameters(), encoder.parameters(), strict=True):
        assert torch.equal(mine, copied)
        assert mine is not copied
    assert len(model.encoder_parameters()) < len(list(model.parameters()))


@pytest.mark.parametrize(("name", "layer"), [("convolutional", "body"), ("torchvision vit", "encoder.ln")])
def test_the_gradient_of_the_map_is_that_of_finite_differences(name: str, layer: str) -> None:
    """The logits move as the gradient says where a hook moves the map a little."""
    model = adapted(random_(copy.deepcopy(NETS[name][0])), f"feature_map={layer}").eval().double()
    x, classes = images(2).double(), torch.tensor([1, 3])
    m, gradient = model.map_and_gradient(x, classes)
    torch.testing.assert_close(m, model.feature_map(x))
    shape = torch.Size([2, 17, 16]) if m.shape[1] == 16 else m.shape
    step = 1e-6 * torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    if m.shape[1] == 16:
        step[:, 0] = 0  # the class token is not on the map
    moved = step[:, 1:].transpose(1, 2).reshape(m.shape) if m.shape[1] == 16 else step
    before = model(x)[[0, 1], classes].sum()
    model.net.get_submodule(layer).register_forward_hook(lambda _, __, output: output + step)
    after = model(x)[[0, 1], classes].sum()
    torch.testing.assert_close(after - before, (gradient * moved).sum(), rtol=1e-3, atol=1e-12)


def test_the_map_of_a_timm_model_has_a_gradient() -> None:
    model = adapted(copy.deepcopy(NETS["timm convnext_atto"][0])).eval()
    m, gradient = model.map_and_gradient(images(2), torch.tensor([1, 3]))
    torch.testing.assert_close(m, model.feature_map(images(2)))
    assert gradient.shape == m.shape
    assert gradient.abs().sum() > 0
