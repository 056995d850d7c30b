"""Any timm model by name, such as ``timm:convnext_atto``. Only ``timm:NAME[pretrained]`` may download anything."""

import difflib
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from fedchoir.models.base import Model, StagedModel
from fedchoir.models.feature_maps import MapLayout
from fedchoir.models.routes import one_line
from fedchoir.models.spec import TIMM
from fedchoir.utils.errors import UsageError
from fedchoir.utils.input_spec import InputSpec

# What timm raises for images that are too small, or for models that are no image classifiers.
_MISFITS = (RuntimeError, ValueError, AssertionError, AttributeError, TypeError, IndexError, ZeroDivisionError)


class TimmModel(StagedModel):
    """A timm backbone with a new linear classifier. ``trunk`` is the whole backbone; there is no neck."""

    def feature_map(self, x: Tensor) -> Tensor:
        """B×map_dim×h×w: convolutional maps unchanged, tokens as a square map, else one position."""
        return MapLayout.of_timm(self.trunk)(self._backbone.forward_features(x))

    def features(self, x: Tensor) -> Tensor:
        """B×feature_dim, with the backbone's pooling."""
        return self.trunk(x)

    def stages(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self._backbone.forward_features(x)
        h = self._backbone.forward_head(y)
        return MapLayout.of_timm(self.trunk)(y), h, self.classify(h)

    def map_and_gradient(self, x: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        y = self._backbone.forward_features(x).detach().requires_grad_()
        logits = self.classify(self._backbone.forward_head(y))
        (gradient,) = torch.autograd.grad(logits.gather(1, classes[:, None]).sum(), y)
        layout = MapLayout.of_timm(self.trunk)
        return layout(y.detach()), layout(gradient)

    def bare_names(self) -> dict[str, str]:
        """As in timm's own checkpoints, where the classifier has a name such as ``fc``."""
        classifier = str(self._backbone.default_cfg.get("classifier") or "head")
        backbone = {f"trunk.{name}": name for name in self.trunk.state_dict()}
        return backbone | {f"head.{name}": f"{classifier}.{name}" for name in self.head.state_dict()}

    @property
    def _backbone(self) -> Any:
        return self.trunk


def build_timm(name: str, num_classes: int, inputs: InputSpec, *, pretrained: bool = False) -> Model:
    """Build ``timm:NAME``. One forward pass finds its dimensions."""
    import timm  # slow to import

    _, height, width = inputs.shape
    model_name = name.removeprefix(TIMM)
    if not timm.is_model(model_name):
        raise UsageError(_unknown(name, model_name, timm))
    try:
        backbone = _create(timm, model_name, inputs)
        map_dim, feature_dim = _dimensions(backbone, inputs)
    except _MISFITS as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"model '{name}' does not take {height}×{width} images: {reason}") from error
    if pretrained:
        backbone = _pretrained(timm, model_name, inputs)
    dims = {"map_dim": map_dim, "feature_dim": feature_dim, "num_classes": num_classes}
    model = TimmModel(name, backbone, nn.Identity(), nn.Linear(feature_dim, num_classes), **dims)
    if pretrained:
        config = model._backbone.pretrained_cfg
        model.notes = (
            f"model {name}: its weights were trained on {'×'.join(map(str, config['input_size'][1:]))} images with "
            f"mean {_numbers(config['mean'])} and standard deviation {_numbers(config['std'])}; here images are "
            f"{height}×{width} with the data's own constants",
        )
    return model


def _create(timm: ModuleType, model_name: str, inputs: InputSpec, *, pretrained: bool = False) -> nn.Module:
    """Pass the image size to models that take it (transformers)."""
    _, height, width = inputs.shape
    settings: dict[str, Any] = {"pretrained": pretrained, "num_classes": 0, "in_chans": 3}
    try:
        return timm.create_model(model_name, img_size=height if height == width else (height, width), **settings)
    except TypeError:
        return timm.create_model(model_name, **settings)


def _pretrained(timm: ModuleType, model_name: str, inputs: InputSpec) -> nn.Module:
    """The backbone with timm's weights, from its cache or from the hub."""
    try:
        return _create(timm, model_name, inputs, pretrained=True)
    except Exception as error:  # the hub's client, the network and the file may each fail in their own way
        raise UsageError(
            f"model 'timm:{model_name}[pretrained]': timm's weights are not in its cache and cannot be downloaded: "
            f"{one_line(error)}; a file works without a network: timm:{model_name}[weights=FILE]"
        ) from error


def _numbers(values: Any) -> str:
    return "(" + ", ".join(f"{value:g}" for value in values) + ")"


def _dimensions(backbone: nn.Module, inputs: InputSpec) -> tuple[int, int]:
    """Channels of the feature map and width of the features. BatchNorm's statistics do not change."""
    probe = TimmModel("", backbone, nn.Identity(), nn.Identity(), map_dim=0, feature_dim=0, num_classes=0)
    probe.eval()
    with torch.no_grad():
        feature_map, features = probe.feature_map(inputs.example(1)), probe.features(inputs.example(1))
    probe.train()
    if min(feature_map.shape) < 1 or features.ndim != 2:
        raise ValueError(f"its features have shape {tuple(features.shape)}")
    return feature_map.shape[1], features.shape[1]


def _unknown(name: str, model_name: str, timm: ModuleType) -> str:
    close = difflib.get_close_matches(model_name, timm.list_models(), n=3, cutoff=0.5)
    hint = f"; did you mean {', '.join(TIMM + match for match in close)}?" if close else ""
    return f"unknown model '{name}': timm has no model of that name{hint} (see `fedchoir list models`)"
