"""The interface of all models, and the layers that builders share."""

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

Norm = Callable[[int], nn.Module]
"""Makes a normalisation layer for a number of channels."""


class VisionModel(nn.Module):
    """An image classifier of three modules: images → feature map → features → logits.

    Args:
        name: the name that it was built from, such as ``resnet10@16``.
        trunk: images B×3×H×W → the last spatial feature map B×map_dim×h×w.
        neck: feature map → features B×feature_dim.
        head: features → logits B×num_classes, including the classifier's dropout.
    """

    def __init__(
        self, name: str, trunk: nn.Module, neck: nn.Module, head: nn.Module, *, map_dim: int, feature_dim: int,
        num_classes: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self.name = name
        self.map_dim, self.feature_dim, self.num_classes = map_dim, feature_dim, num_classes
        self.trunk, self.neck, self.head = trunk, neck, head

    def feature_map(self, x: Tensor) -> Tensor:
        """The last spatial feature map, before pooling: B×3×H×W → B×map_dim×h×w."""
        return self.trunk(x)

    def features(self, x: Tensor) -> Tensor:
        """The classifier's input h: B×3×H×W → B×feature_dim."""
        return self.neck(self.trunk(x))

    def classify(self, h: Tensor) -> Tensor:
        """Features to logits: B×feature_dim → B×num_classes. ``h`` is not modified."""
        return self.head(h)

    def features_and_logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features and logits (h, z) in one pass, so that BatchNorm's statistics are updated once."""
        h = self.features(x)
        return h, self.classify(h)

    def stages(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Feature map, features and logits (m, h, z) in one pass."""
        m = self.trunk(x)
        h = self.neck(m)
        return m, h, self.classify(h)

    def forward(self, x: Tensor) -> Tensor:
        """Logits: B×3×H×W → B×num_classes."""
        return self.classify(self.features(x))

    def extra_repr(self) -> str:
        return f"{self.name}, map_dim={self.map_dim}, feature_dim={self.feature_dim}"


@dataclass(frozen=True)
class Spec:
    """What a builder needs to know.

    Attributes:
        name: the name that the model is built from.
        width: the number after ``@``, or the architecture's default.
        num_classes: length of the logits.
        image_size: side of the square input images.
    """

    name: str
    width: float
    num_classes: int
    image_size: int

    @property
    def base_width(self) -> int:
        """The width as a number of channels."""
        return int(self.width)

    def model(self, trunk: nn.Module, neck: nn.Module, head: nn.Module, map_dim: int, feature_dim: int) -> VisionModel:
        """The model from its modules and their output widths."""
        dims = {"map_dim": map_dim, "feature_dim": feature_dim, "num_classes": self.num_classes}
        return VisionModel(self.name, trunk, neck, head, **dims)


@dataclass(frozen=True)
class Architecture:
    """A built-in model name.

    Attributes:
        summary: one line for ``fedchoir list models``.
        build: makes the model.
        width: the default of the number after ``@``: an ``int`` is a number of channels (the base width), a ``float``
            multiplies all channel counts, ``None``: the width is fixed.
    """

    summary: str
    build: Callable[[Spec], VisionModel]
    width: int | float | None


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
