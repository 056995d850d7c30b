"""Name → model.

``NAME`` is one of :func:`names`, ``NAME@WIDTH`` a narrower or wider variant, ``timm:NAME`` any timm model.
What WIDTH means depends on the architecture:

- ``resnet*`` ``vgg9`` ``alexnet`` ``simple_cnn`` ``cnn2``: channels of the first stage or convolution; the
  other widths keep their ratio to it. ``resnet10@16`` has widths 16, 32, 64, 128, not 64 to 512.
- ``mobilenet_v2`` ``efficientnet_b0`` ``googlenet``: a multiplier of all channel counts; depth stays.
- ``mlp``: hidden units. ``logistic`` has no width.

Weights are always random, drawn from torch's global generator: seed it before :func:`build`.
"""

from __future__ import annotations

import difflib
import math

from fedchoir.models.base import Architecture, Spec, VisionModel
from fedchoir.models.image import classic, googlenet, mobile, resnet
from fedchoir.models.image.timm_models import PREFIX, build_timm
from fedchoir.utils.errors import UsageError

_ARCHITECTURES: dict[str, Architecture] = {
    **resnet.ARCHITECTURES,
    **mobile.ARCHITECTURES,
    **googlenet.ARCHITECTURES,
    **classic.ARCHITECTURES,
}
_SEE = "(see `fedchoir list models`)"
_SMALLEST_IMAGE = 16
_WIDEST, _LARGEST_MULTIPLIER = 4096, 16.0


def names() -> list[str]:
    """The built-in names, in alphabetical order.

    >>> names()[:3]
    ['alexnet', 'cnn2', 'efficientnet_b0']
    """
    return sorted(_ARCHITECTURES)


def describe(name: str) -> str:
    """One line about a name, with or without its width.

    >>> describe("simple_cnn@8")
    "two 5×5 convolutions (FedAvg's CNN); @WIDTH = first width (32)"
    """
    if name.startswith(PREFIX):
        return f"timm's {name.removeprefix(PREFIX)}, without pretrained weights"
    return _parse(name)[0].summary


def build(name: str, num_classes: int, *, image_size: int = 32) -> VisionModel:
    """A model with random weights, in training mode, on the CPU.

    Args:
        name: see the top of this module.
        num_classes: length of the logits.
        image_size: side of the square input images, at least 16. ``mlp``, ``logistic`` and timm's
            transformers then take this size only; all others take any.

    >>> import torch
    >>> model = build("resnet10@4", 7)
    >>> x = torch.zeros(2, 3, 32, 32)
    >>> model.feature_map(x).shape, model.features(x).shape, model(x).shape
    (torch.Size([2, 32, 4, 4]), torch.Size([2, 32]), torch.Size([2, 7]))
    """
    if num_classes < 1:
        raise UsageError(f"num_classes is {num_classes}; a model needs at least 1 class")
    if image_size < _SMALLEST_IMAGE:
        raise UsageError(
            f"image_size is {image_size}; models take images of {_SMALLEST_IMAGE}×{_SMALLEST_IMAGE} or more"
        )
    if name.startswith(PREFIX):
        return build_timm(name, num_classes, image_size)
    architecture, width = _parse(name)
    parts = architecture.assemble(Spec(width, num_classes, image_size))
    return VisionModel(
        name,
        parts.trunk,
        parts.neck,
        parts.head,
        map_dim=parts.map_dim,
        feature_dim=parts.feature_dim,
        num_classes=num_classes,
    )


def _parse(name: str) -> tuple[Architecture, float]:
    """The architecture and the width that ``NAME`` or ``NAME@WIDTH`` stand for."""
    base, at, text = name.partition("@")
    architecture = _ARCHITECTURES.get(base)
    if architecture is None:
        close = difflib.get_close_matches(base.lower(), names(), n=3, cutoff=0.5)
        hint = f"; did you mean {', '.join(close)}?" if close else ""
        raise UsageError(f"unknown model '{name}'{hint} {_SEE}")
    if not at:
        return architecture, architecture.width or 0
    return architecture, _width(name, base, text, architecture.width)


def _width(name: str, base: str, text: str, default: int | float | None) -> float:
    """The number after ``@``: whole for a base width, any positive one for a multiplier."""
    if default is None:
        raise UsageError(f"model '{name}': {base} has no width; write '{base}' {_SEE}")
    if isinstance(default, int):
        if text.isascii() and text.isdigit() and 1 <= int(text) <= _WIDEST:
            return int(text)
        right = f"a whole number from 1 to {_WIDEST}, such as {base}@{max(1, default // 4)}"
    else:
        width = _number(text)
        if 0 < width <= _LARGEST_MULTIPLIER:
            return width
        right = f"a width multiplier above 0 and at most {_LARGEST_MULTIPLIER:g}, such as {base}@0.25"
    raise UsageError(f"model '{name}': the width '{text}' should be {right} {_SEE}")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
