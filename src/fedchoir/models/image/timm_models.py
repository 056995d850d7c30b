"""Any timm model by name, such as ``timm:convnext_atto``, without pretrained weights: nothing is downloaded."""

import difflib
import math
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from fedchoir.models.base import VisionModel
from fedchoir.models.registry import PREFIX
from fedchoir.utils.errors import UsageError

# What timm raises for images that are too small, or for models that are no image classifiers.
_MISFITS = (RuntimeError, ValueError, AssertionError, AttributeError, TypeError, IndexError, ZeroDivisionError)


class TimmModel(VisionModel):
    """A timm backbone with a new linear classifier. ``trunk`` is the whole backbone; there is no neck."""

    def feature_map(self, x: Tensor) -> Tensor:
        """B×map_dim×h×w: convolutional maps unchanged, tokens as a square map, else one position."""
        return self._as_map(self.trunk.forward_features(x))  # type: ignore[operator]

    def features(self, x: Tensor) -> Tensor:
        """B×feature_dim, with the backbone's pooling."""
        return self.trunk(x)

    def stages(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map, features and logits in one pass."""
        y = self.trunk.forward_features(x)  # type: ignore[operator]
        h = self.trunk.forward_head(y)  # type: ignore[operator]
        return self._as_map(y), h, self.classify(h)

    def _as_map(self, y: Tensor) -> Tensor:
        prefix = getattr(self.trunk, "num_prefix_tokens", 0)
        return as_map(y, prefix=prefix, channels_last=_channels_last(self.trunk))


def as_map(y: Tensor, *, prefix: int = 0, channels_last: bool = False) -> Tensor:
    """The output of a backbone as B×D×h×w.

    Of tokens B×N×D the first ``prefix`` (class token, registers) are dropped; a square number of others becomes a
    square map, any other number their mean at one position.

    >>> as_map(torch.zeros(2, 1 + 9, 5), prefix=1).shape
    torch.Size([2, 5, 3, 3])
    >>> as_map(torch.zeros(2, 8, 5)).shape
    torch.Size([2, 5, 1, 1])
    """
    if y.ndim == 4:
        return y.permute(0, 3, 1, 2) if channels_last else y
    if y.ndim == 2:
        return y[:, :, None, None]
    y = y[:, prefix:].transpose(1, 2)
    side = math.isqrt(y.shape[2])
    if side * side != y.shape[2]:
        return y.mean(dim=2)[:, :, None, None]
    return y.reshape(y.shape[0], y.shape[1], side, side)


def build_timm(name: str, num_classes: int, image_size: int) -> VisionModel:
    """Build ``timm:NAME`` for square images. One forward pass finds its dimensions."""
    import timm  # slow to import

    model_name = name.removeprefix(PREFIX)
    if not timm.is_model(model_name):
        raise UsageError(_unknown(name, model_name, timm))
    try:
        backbone = _create(timm, model_name, image_size)
        map_dim, feature_dim = _dimensions(backbone, image_size)
    except _MISFITS as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"model '{name}' does not take {image_size}×{image_size} images: {reason}") from error
    dims = {"map_dim": map_dim, "feature_dim": feature_dim, "num_classes": num_classes}
    return TimmModel(name, backbone, nn.Identity(), nn.Linear(feature_dim, num_classes), **dims)


def _create(timm: ModuleType, model_name: str, image_size: int) -> nn.Module:
    """Pass the image size to models that take it (transformers)."""
    settings: dict[str, Any] = {"pretrained": False, "num_classes": 0, "in_chans": 3}
    try:
        return timm.create_model(model_name, img_size=image_size, **settings)
    except TypeError:
        return timm.create_model(model_name, **settings)


def _dimensions(backbone: nn.Module, image_size: int) -> tuple[int, int]:
    """Channels of the feature map and width of the features. BatchNorm's statistics do not change."""
    probe = TimmModel("", backbone, nn.Identity(), nn.Identity(), map_dim=0, feature_dim=0, num_classes=0)
    probe.eval()
    with torch.no_grad():
        image = torch.zeros(1, 3, image_size, image_size)
        feature_map, features = probe.feature_map(image), probe.features(image)
    probe.train()
    if min(feature_map.shape) < 1 or features.ndim != 2:
        raise ValueError(f"its features have shape {tuple(features.shape)}")
    return feature_map.shape[1], features.shape[1]


def _channels_last(backbone: nn.Module) -> bool:
    return str(getattr(backbone, "output_fmt", "")).upper().endswith("NHWC")


def _unknown(name: str, model_name: str, timm: ModuleType) -> str:
    close = difflib.get_close_matches(model_name, timm.list_models(), n=3, cutoff=0.5)
    hint = f"; did you mean {', '.join(PREFIX + match for match in close)}?" if close else ""
    return f"unknown model '{name}': timm has no model of that name{hint} (see `fedchoir list models`)"
