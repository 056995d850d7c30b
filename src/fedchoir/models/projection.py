"""One feature width for models of different architectures: a projection between a model's features and its head."""

from __future__ import annotations

from copy import deepcopy
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from fedchoir.models.base import Model
from fedchoir.utils.errors import UsageError

Projection = Literal["linear", "pooled"]
Layer = Literal["linear", "pooled", "mlp"]


class ProjectedModel(Model):
    """A model whose features are projected to a common width, with a linear head on the projected features.

    Args:
        model: any model; its own head is not used and is removed.
        width: of the projected features.
        projection: ``linear`` is a learned layer; ``pooled`` averages neighbouring features, without parameters;
            ``mlp`` is MOON's head (Li et al., CVPR 2021), two linear layers with ReLU between them. Only after
            ``linear`` and ``mlp`` may features be negative.

    >>> from fedchoir.models import build
    >>> model = ProjectedModel(build("mlp", 3), 8)
    >>> model.features(torch.zeros(2, 3, 32, 32)).shape, model.head
    (torch.Size([2, 8]), Linear(in_features=8, out_features=3, bias=True))
    """

    def __init__(self, model: Model, width: int, projection: Layer = "linear") -> None:
        super().__init__(model.name, map_dim=model.map_dim, feature_dim=width, num_classes=model.num_classes)
        self.notes, self.trunk_lr = model.notes, model.trunk_lr
        self.backbone = model.encoder()
        self.projection = _layer(projection, model.feature_dim, width)
        self.head: nn.Module = nn.Linear(width, model.num_classes)
        if model.head_only:
            self.train_head_only()

    def features(self, x: Tensor) -> Tensor:
        return self.projection(self.backbone.features(x))

    def classify(self, h: Tensor) -> Tensor:
        return self.head(h)

    def feature_map(self, x: Tensor) -> Tensor:
        return self.backbone.feature_map(x)

    def stages(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        m, features, _ = self.backbone.stages(x)
        h = self.projection(features)
        return m, h, self.classify(h)

    def map_and_gradient(self, x: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            m, _, z = self.stages(x)
            (gradient,) = torch.autograd.grad(z.gather(1, classes[:, None]).sum(), m, allow_unused=True)
        if gradient is None:  # a map of the user's own model that was rearranged
            raise UsageError(f"the feature map of model '{self.name}' has no gradient behind a projection")
        return m.detach(), gradient

    # -- modules ---------------------------------------------------------------------------------------------------

    @property
    def memory_format(self) -> torch.memory_format:
        return self.backbone.memory_format

    def watched_modules(self) -> list[nn.Module]:
        return self.backbone.watched_modules()

    def head_modules(self) -> list[nn.Module]:
        return [self.head]

    def train_head_only(self) -> None:
        super().train_head_only()
        self.projection.requires_grad_(True)  # as new as the head

    def encoder(self) -> ProjectedModel:
        copy = deepcopy(self)
        copy.head = nn.Identity()
        return copy

    def stage_modules(self) -> dict[str, nn.Module]:
        return self.backbone.stage_modules()

    def recomputable(self) -> list[nn.Module]:
        return self.backbone.recomputable()


def _layer(projection: Layer, inputs: int, width: int) -> nn.Module:
    if projection not in get_args(Layer):
        raise UsageError(f"projection = {projection!r}: it should be {' or '.join(get_args(Projection))}")
    if projection == "mlp":
        return nn.Sequential(nn.Linear(inputs, inputs), nn.ReLU(), nn.Linear(inputs, width))
    if inputs == width:
        return nn.Identity()
    return nn.Linear(inputs, width) if projection == "linear" else PooledFeatures(width)


class PooledFeatures(nn.Module):
    """Averages neighbouring features: B×d → B×width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, h: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool1d(h.unsqueeze(1), self.width).squeeze(1)

    def extra_repr(self) -> str:
        return f"width={self.width}"
