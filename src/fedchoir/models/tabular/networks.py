"""Small networks for encoded tables, B×F. They use no BatchNorm, so batches may be small.

``@WIDTH`` is the number of hidden units (``mlp``, ``res_mlp``) or the width of a token (``ft_transformer``);
``logistic`` has none.
"""

import torch
from torch import Tensor, nn

from fedchoir.models.base import Architecture, Model, Spec
from fedchoir.models.sequence import transformer

BLOCKS = 2


def _model(spec: Spec, trunk: nn.Module, width: int) -> Model:
    """A trunk that gives features, and a linear classifier."""
    return spec.model(trunk, nn.Identity(), nn.Linear(width, spec.num_classes), map_dim=0, feature_dim=width)


def _logistic(spec: Spec) -> Model:
    """Multinomial logistic regression: the features are the inputs."""
    return _model(spec, nn.Identity(), spec.inputs.shape[0])


def _mlp(spec: Spec) -> Model:
    """Two hidden layers of W units."""
    w = spec.base_width
    return _model(spec, nn.Sequential(nn.Linear(spec.inputs.shape[0], w), nn.ReLU(), nn.Linear(w, w), nn.ReLU()), w)


class ResidualBlock(nn.Module):
    """x + two linear layers of the normalised x."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


def _res_mlp(spec: Spec) -> Model:
    """Two residual blocks (the ResNet for tables of Gorishniy et al., NeurIPS 2021, with LayerNorm)."""
    w = spec.base_width
    blocks = [ResidualBlock(w) for _ in range(BLOCKS)]
    return _model(spec, nn.Sequential(nn.Linear(spec.inputs.shape[0], w), *blocks, nn.LayerNorm(w), nn.ReLU()), w)


class FeatureTokens(nn.Module):
    """One token per feature, its value times a learned vector plus another, after a learned class token.

    B×F → B×(1 + F)×width.
    """

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        bound = width**-0.5
        self.scale = nn.Parameter(torch.empty(features, width).uniform_(-bound, bound))
        self.offset = nn.Parameter(torch.empty(1 + features, width).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.unsqueeze(2) * self.scale
        return torch.cat([torch.zeros_like(tokens[:, :1]), tokens], dim=1) + self.offset


class ClassToken(nn.Module):
    """The first token: B×tokens×width → B×width."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


def _ft_transformer(spec: Spec) -> Model:
    """Two transformer layers on one token per feature (FT-Transformer, Gorishniy et al., NeurIPS 2021)."""
    w = spec.base_width
    tokens = FeatureTokens(spec.inputs.shape[0], w)
    return _model(spec, nn.Sequential(tokens, transformer(w, layers=BLOCKS), ClassToken(), nn.ReLU()), w)


ARCHITECTURES = {
    "logistic": Architecture("multinomial logistic regression on the columns", _logistic, None, "table"),
    "mlp": Architecture("two hidden layers; @WIDTH = hidden units (64)", _mlp, 64, "table"),
    "res_mlp": Architecture("two residual blocks with LayerNorm; @WIDTH = hidden units (64)", _res_mlp, 64, "table"),
    "ft_transformer": Architecture(
        "transformer on one token per feature; @WIDTH = width of a token (32)", _ft_transformer, 32, "table"
    ),
}
