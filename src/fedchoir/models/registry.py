"""Name → model.

``NAME`` is one of :func:`names`, ``NAME@WIDTH`` a narrower or wider variant, ``timm:NAME`` any timm model,
``FILE.py:FACTORY`` or ``package.module:FACTORY`` the user's own. Options in brackets: `ModelSpec`.
What WIDTH means depends on the architecture:

- ``resnet*`` ``vgg9`` ``alexnet`` ``simple_cnn`` ``cnn2``: channels of the first stage or convolution; the
  other widths keep their ratio to it. ``resnet10@16`` has widths 16, 32, 64, 128, not 64 to 512.
- ``mobilenet_v2`` ``efficientnet_b0*`` ``googlenet*``: a multiplier of all channel counts; depth stays.
- ``mlp``: hidden units. ``logistic`` has no width.

Random weights are drawn from torch's global generator: seed it before :func:`build`.
"""

import difflib
import math
from functools import cache
from importlib import import_module
from pathlib import Path

from fedchoir.models.base import Architecture, Model, Spec
from fedchoir.models.projection import ProjectedModel
from fedchoir.models.spec import TIMM, ModelSpec
from fedchoir.models.strided_pointwise import avoid_faulty_convolutions
from fedchoir.models.trust import trusted
from fedchoir.utils.errors import UsageError
from fedchoir.utils.factories import load_factory
from fedchoir.utils.input_spec import IMAGES_32, InputSpec

_SEE = "(see `fedchoir list models`)"
_MIN_IMAGE = 16
_MAX_WIDTH, _MAX_MULTIPLIER = 4096, 16.0


_MODULES = (
    "image.resnet", "image.mobile", "image.googlenet", "image.classic",
    "tabular.networks", "series.networks", "text.networks", "tensor",
)  # fmt: skip

SMALL_MODELS = {"image": "simple_cnn", "table": "mlp", "series": "cnn1d", "text": "bag_of_embeddings", "tensor": "mlp"}
"""A small architecture for each modality, for methods in which all clients share one."""


@cache
def _architectures(modality: str) -> dict[str, Architecture]:
    """The architectures for one modality. Two modalities may share a name, such as ``mlp``."""
    modules = [import_module(f"fedchoir.models.{name}") for name in _MODULES]
    found = {name: a for module in modules for name, a in module.ARCHITECTURES.items() if a.modality == modality}
    return dict(sorted(found.items()))


def names(modality: str = "image") -> list[str]:
    """The built-in names for a modality, in alphabetical order.

    >>> names()[:3]
    ['alexnet', 'cnn2', 'efficientnet_b0']
    """
    return list(_architectures(modality))


def describe(name: str, modality: str = "image") -> str:
    """A one-line description of a name, with or without its width.

    >>> describe("simple_cnn@8")
    "two 5×5 convolutions (FedAvg's CNN); @WIDTH = first width (32)"
    """
    spec = ModelSpec.parse(name)
    if spec.kind == "timm":
        return f"timm's {spec.source.removeprefix(TIMM)}, {'with' if spec.pretrained else 'without'} pretrained weights"
    return _parse(spec.source, modality)[0].summary if spec.kind == "zoo" else f"your own: {spec.source}"


def check_name(name: str) -> None:
    """Raise `UsageError` where a name can be no model, whatever its samples are."""
    spec = trusted(name)
    if spec.kind == "zoo":
        known = {n: modality for modality in SMALL_MODELS for n in names(modality)}
        _parse(spec.source, known.get(spec.source.partition("@")[0], "image"))
    elif spec.kind in ("file", "package"):
        load_factory(spec.source, f"model '{spec.source}'")
    if spec.weights and not Path(spec.weights).expanduser().is_file():
        raise UsageError(f"weights: there is no file {spec.weights}")


def build(name: str, num_classes: int, inputs: InputSpec = IMAGES_32) -> Model:
    """Build a model in training mode, on the CPU. Its weights are random unless its options say otherwise.

    Args:
        name: see the module.
        num_classes: length of the logits.
        inputs: what the model receives; images of 16×16 or more. ``mlp``, ``logistic`` and timm's transformers then
            take this size only; all others take any.

    >>> import torch
    >>> model = build("resnet10@4", 7)
    >>> x = torch.zeros(2, 3, 32, 32)
    >>> model.feature_map(x).shape, model.features(x).shape, model(x).shape
    (torch.Size([2, 32, 4, 4]), torch.Size([2, 32]), torch.Size([2, 7]))
    """
    if num_classes < 1:
        raise UsageError(f"num_classes is {num_classes}; a model needs at least 1 class")
    spec = trusted(name)
    model = _built(spec, num_classes, inputs)
    if spec.projection:
        model = ProjectedModel(model, spec.projection, "mlp")
    model.name = name
    avoid_faulty_convolutions(model)
    if spec.weights:
        from fedchoir.models.weights import load_weights

        model.notes += tuple(load_weights(model, Path(spec.weights).expanduser()))
    model.trunk_lr = spec.trunk_lr
    if spec.train == "head":
        model.train_head_only()
    return model


def _built(spec: ModelSpec, num_classes: int, inputs: InputSpec) -> Model:
    """The model that a source names, with random weights or timm's."""
    if spec.kind not in ("zoo", "timm"):
        from fedchoir.models.own_code import build_own

        return build_own(spec, num_classes, inputs)
    if inputs.modality == "image" and min(inputs.shape[1:]) < _MIN_IMAGE:
        raise UsageError(
            f"image_size is {min(inputs.shape[1:])}; models take images of {_MIN_IMAGE}×{_MIN_IMAGE} or more"
        )
    if spec.kind == "timm":
        if inputs.modality != "image":
            raise UsageError(f"model '{spec.source}' is for images, not for {inputs.modality} samples")
        from fedchoir.models.image.timm_models import build_timm

        return build_timm(spec.source, num_classes, inputs, pretrained=spec.pretrained)
    architecture, width = _parse(spec.source, inputs.modality)
    return architecture.build(Spec(spec.source, width, num_classes, inputs))


def _parse(name: str, modality: str) -> tuple[Architecture, float]:
    """The architecture and the width of ``NAME`` or ``NAME@WIDTH``."""
    base, at, text = name.partition("@")
    architecture = _architectures(modality).get(base)
    if architecture is None:
        close = difflib.get_close_matches(base.lower(), names(modality), n=3, cutoff=0.5)
        if not close and modality != "image":
            raise UsageError(f"model '{name}' is not for {modality} samples; these are: {', '.join(names(modality))}")
        hint = f"; did you mean {', '.join(close)}?" if close else ""
        raise UsageError(f"unknown model '{name}'{hint} {_SEE}")
    if not at:
        return architecture, architecture.width or 0
    return architecture, _width(name, base, text, architecture.width)


def _width(name: str, base: str, text: str, default: int | float | None) -> float:
    """The number after ``@``: an integer base width, or any positive multiplier."""
    if default is None:
        raise UsageError(f"model '{name}': {base} has no width; write '{base}' {_SEE}")
    if isinstance(default, int):
        if text.isascii() and text.isdigit() and 1 <= int(text) <= _MAX_WIDTH:
            return int(text)
        right = f"a whole number from 1 to {_MAX_WIDTH}, such as {base}@{max(1, default // 4)}"
    else:
        try:
            width = float(text)
        except ValueError:
            width = math.nan
        if 0 < width <= _MAX_MULTIPLIER:
            return width
        right = f"a width multiplier above 0 and at most {_MAX_MULTIPLIER:g}, such as {base}@0.25"
    raise UsageError(f"model '{name}': the width '{text}' should be {right} {_SEE}")
