"""Name → model.

``NAME`` is one of :func:`names`, ``NAME@WIDTH`` a narrower or wider variant, ``timm:NAME`` any timm model.
What WIDTH means depends on the architecture:

- ``resnet*`` ``vgg9`` ``alexnet`` ``simple_cnn`` ``cnn2``: channels of the first stage or convolution; the
  other widths keep their ratio to it. ``resnet10@16`` has widths 16, 32, 64, 128, not 64 to 512.
- ``mobilenet_v2`` ``efficientnet_b0`` ``googlenet``: a multiplier of all channel counts; depth stays.
- ``mlp``: hidden units. ``logistic`` has no width.

Weights are random, drawn from torch's global generator: seed it before :func:`build`.
"""

import difflib
import math
from functools import cache

from fedchoir.models.base import Architecture, Spec, VisionModel
from fedchoir.utils.errors import UsageError

PREFIX = "timm:"
_SEE = "(see `fedchoir list models`)"
_MIN_IMAGE = 16
_MAX_WIDTH, _MAX_MULTIPLIER = 4096, 16.0


@cache
def _architectures() -> dict[str, Architecture]:
    from fedchoir.models.image import classic, googlenet, mobile, resnet

    return {
        name: architecture
        for module in (resnet, mobile, googlenet, classic)
        for name, architecture in module.ARCHITECTURES.items()
    }


def names() -> list[str]:
    """The built-in names, in alphabetical order.

    >>> names()[:3]
    ['alexnet', 'cnn2', 'efficientnet_b0']
    """
    return sorted(_architectures())


def describe(name: str) -> str:
    """A one-line description of a name, with or without its width.

    >>> describe("simple_cnn@8")
    "two 5×5 convolutions (FedAvg's CNN); @WIDTH = first width (32)"
    """
    if name.startswith(PREFIX):
        return f"timm's {name.removeprefix(PREFIX)}, without pretrained weights"
    return _parse(name)[0].summary


def build(name: str, num_classes: int, *, image_size: int = 32) -> VisionModel:
    """Build a model with random weights, in training mode, on the CPU.

    Args:
        name: see the module.
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
    if image_size < _MIN_IMAGE:
        raise UsageError(f"image_size is {image_size}; models take images of {_MIN_IMAGE}×{_MIN_IMAGE} or more")
    if name.startswith(PREFIX):
        from fedchoir.models.image.timm_models import build_timm

        return build_timm(name, num_classes, image_size)
    architecture, width = _parse(name)
    return architecture.build(Spec(name, width, num_classes, image_size))


def _parse(name: str) -> tuple[Architecture, float]:
    """The architecture and the width of ``NAME`` or ``NAME@WIDTH``."""
    base, at, text = name.partition("@")
    architecture = _architectures().get(base)
    if architecture is None:
        close = difflib.get_close_matches(base.lower(), names(), n=3, cutoff=0.5)
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
