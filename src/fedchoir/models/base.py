"""The interface of all models, and the layers that builders share."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedchoir.utils.errors import UsageError
from fedchoir.utils.input_spec import InputSpec

Norm = Callable[[int], nn.Module]
"""Makes a normalisation layer for a number of channels."""


class Model(nn.Module):
    """A classifier that gives features and, where it has one, a feature map: the interface of all models.

    Args:
        name: the name that it was built from, such as ``resnet10@16``.
        map_dim: channels of the last feature map; 0 where there is none.
        feature_dim: width of the features, the classifier's input.
        num_classes: length of the logits.
    """

    notes: tuple[str, ...] = ()  # for the result of a run
    trunk_lr = 1.0  # factor on the learning rate of the layers before the head
    head_only = False  # the layers before the head are frozen

    def __init__(self, name: str, *, map_dim: int, feature_dim: int, num_classes: int) -> None:
        super().__init__()
        self.name = name
        self.map_dim, self.feature_dim, self.num_classes = map_dim, feature_dim, num_classes

    def features(self, x: Tensor) -> Tensor:
        """The classifier's input h: a batch of samples → B×feature_dim."""
        raise NotImplementedError

    def classify(self, h: Tensor) -> Tensor:
        """Features to logits: B×feature_dim → B×num_classes. ``h`` is not modified."""
        raise NotImplementedError

    def stages(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Feature map, features and logits (m, h, z) in one pass."""
        raise NotImplementedError

    def feature_map(self, x: Tensor) -> Tensor:
        """The last feature map, before pooling: B×map_dim×h×w. A sequence has height 1."""
        return self.stages(x)[0]

    def features_and_logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features and logits (h, z) in one pass, so that BatchNorm's statistics are updated once."""
        h = self.features(x)
        return h, self.classify(h)

    def forward(self, x: Tensor) -> Tensor:
        """Logits: B×num_classes."""
        return self.classify(self.features(x))

    def map_and_gradient(self, x: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        """The feature map, and the gradient of each sample's class logit with respect to it."""
        raise NotImplementedError

    def require_map(self, user: str) -> None:
        """Raise `UsageError` where there is no feature map; ``user`` needs it."""
        if not self.map_dim:
            raise UsageError(
                f"{user} needs a feature map, and model '{self.name}' has none: use a model for which "
                "`fedchoir list models --check` shows one, or name a layer of your own model, [feature_map=LAYER]"
            )

    # -- modules ---------------------------------------------------------------------------------------------------

    @property
    def memory_format(self) -> torch.memory_format:
        """Of 4-dimensional weights, on the device where the model is."""
        return torch.channels_last

    def head_modules(self) -> list[nn.Module]:
        """The modules that `classify` uses."""
        raise NotImplementedError

    def encoder(self) -> Model:
        """A copy without the head, whose output is the features."""
        raise NotImplementedError

    def encoder_parameters(self) -> list[nn.Parameter]:
        """The parameters before the head, in the order of ``encoder().parameters()``."""
        head = {id(p) for module in self.head_modules() for p in module.parameters()}
        return [p for p in self.parameters() if id(p) not in head]

    def stage_modules(self) -> dict[str, nn.Module]:
        """The largest modules before the head, by name, for comparisons layer by layer."""
        raise NotImplementedError

    def recomputable(self) -> list[nn.Module]:
        """Modules of one tensor that the backward pass may run again (activation checkpointing)."""
        return []

    def watched_modules(self) -> list[nn.Module]:
        """Modules of which each call must happen, because their inputs or outputs are read there."""
        return []

    def bare_names(self) -> dict[str, str]:
        """The names of weights and buffers without what the wrapper adds, as in files of weights."""
        return {name: name for name in self.state_dict()}

    # -- training ---------------------------------------------------------------------------------------------------

    def train_head_only(self) -> None:
        """Freeze everything before the head: weights, BatchNorm's statistics, and dropout."""
        self.head_only = True
        for p in self.encoder_parameters():
            p.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.head_only:
            for module in self.children():
                module.eval()
            for module in self.head_modules():
                module.train(mode)
        return self

    def extra_repr(self) -> str:
        return f"{self.name}, map_dim={self.map_dim}, feature_dim={self.feature_dim}"


class StagedModel(Model):
    """A model of three modules: samples → feature map → features → logits. Those of the zoo are.

    Args:
        trunk: samples → the last feature map B×map_dim×h×w; the features where there is no map.
        neck: feature map → features B×feature_dim.
        head: features → logits B×num_classes, including the classifier's dropout.
    """

    def __init__(
        self, name: str, trunk: nn.Module, neck: nn.Module, head: nn.Module, *, map_dim: int, feature_dim: int,
        num_classes: int,
    ) -> None:  # fmt: skip
        super().__init__(name, map_dim=map_dim, feature_dim=feature_dim, num_classes=num_classes)
        self.trunk, self.neck, self.head = trunk, neck, head

    def feature_map(self, x: Tensor) -> Tensor:
        self.require_map("feature_map")
        return self.trunk(x)

    def features(self, x: Tensor) -> Tensor:
        return self.neck(self.trunk(x))

    def classify(self, h: Tensor) -> Tensor:
        return self.head(h)

    def stages(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        m = self.feature_map(x)
        h = self.neck(m)
        return m, h, self.classify(h)

    def map_and_gradient(self, x: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        m = self.feature_map(x).detach().requires_grad_()
        logits = self.classify(self.neck(m))
        (gradient,) = torch.autograd.grad(logits.gather(1, classes[:, None]).sum(), m)
        return m.detach(), gradient

    def head_modules(self) -> list[nn.Module]:
        return [self.head]

    def encoder(self) -> StagedModel:
        copy = deepcopy(self)
        copy.head = nn.Identity()
        return copy

    def stage_modules(self) -> dict[str, nn.Module]:
        return dict(self.trunk.named_children())

    def recomputable(self) -> list[nn.Module]:
        return [self.trunk]


@dataclass(frozen=True)
class Spec:
    """What a builder needs to know.

    Attributes:
        name: the name that the model is built from.
        width: the number after ``@``, or the architecture's default.
        num_classes: length of the logits.
        inputs: what the model receives.
    """

    name: str
    width: float
    num_classes: int
    inputs: InputSpec

    @property
    def base_width(self) -> int:
        """The width as a number of channels."""
        return int(self.width)

    def model(self, trunk: nn.Module, neck: nn.Module, head: nn.Module, map_dim: int, feature_dim: int) -> Model:
        """The model from its modules and their output widths."""
        dims = {"map_dim": map_dim, "feature_dim": feature_dim, "num_classes": self.num_classes}
        return StagedModel(self.name, trunk, neck, head, **dims)


@dataclass(frozen=True)
class Architecture:
    """A built-in model name.

    Attributes:
        summary: one line for ``fedchoir list models``.
        build: makes the model.
        width: the default of the number after ``@``: an ``int`` is a number of channels (the base width), a ``float``
            multiplies all channel counts, ``None``: the width is fixed.
        modality: of the samples that it takes.
    """

    summary: str
    build: Callable[[Spec], Model]
    width: int | float | None
    modality: str = "image"


class GridPool(nn.Module):
    """Average a B×C×h×w map into ``side``×``side`` cells and flatten it to B×(C·side²).

    A map of that size is only flattened, which keeps the backward pass deterministic on CUDA.
    """

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-2:] != (self.side, self.side):
            x = F.adaptive_avg_pool2d(x, self.side)
        return x.flatten(1)


def laid_out(model: Model) -> Model:
    """The model with its 4-dimensional weights in its memory format."""
    return model.to(memory_format=model.memory_format)  # type: ignore[call-overload]


def global_pool() -> nn.Module:
    """Mean over all positions: B×C×h×w → B×C."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(1))


def conv_norm_relu(inputs: int, outputs: int, norm: Norm = nn.BatchNorm2d) -> nn.Sequential:
    """3×3 convolution that keeps the size, normalisation, ReLU."""
    convolution = nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False)
    return nn.Sequential(convolution, norm(outputs), nn.ReLU(inplace=True))


def init_kaiming(module: nn.Module) -> None:
    """He et al.'s normal initialisation of every convolution (fan out); other layers keep PyTorch's."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
