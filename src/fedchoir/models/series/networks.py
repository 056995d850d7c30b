"""Small networks for series. The feature map is B×width×1×time, so class activation shows which moments matter.

``@WIDTH`` is the number of channels of the first convolution (``cnn1d``), of hidden units a direction (``gru``) or of
the tokens (``transformer``).
"""

import torch
from torch import Tensor, nn

from fedchoir.models.base import Architecture, Model, Spec, global_pool
from fedchoir.models.sequence import AsMap, BiGRU, transformer

PATCH = 8  # time steps a token of the transformer
STRIDE = 4  # time steps a step of the GRU


def _conv_norm_relu(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
    convolution = nn.Conv1d(inputs, outputs, kernel, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm1d(outputs), nn.ReLU(inplace=True))


def _cnn1d(spec: Spec) -> Model:
    """Three convolutions of 7, 5 and 3 steps, widths W·(1, 2, 4), each with BatchNorm; pooling by 2 between them."""
    w, channels = spec.base_width, spec.inputs.shape[0]
    trunk = nn.Sequential(
        _conv_norm_relu(channels, w, 7),
        nn.MaxPool1d(2, ceil_mode=True),
        _conv_norm_relu(w, 2 * w, 5),
        nn.MaxPool1d(2, ceil_mode=True),
        _conv_norm_relu(2 * w, 4 * w, 3),
        AsMap(),
    )
    return spec.model(trunk, global_pool(), nn.Linear(4 * w, spec.num_classes), map_dim=4 * w, feature_dim=4 * w)


class Patches(nn.Module):
    """Windows of time, without overlap, as tokens: B×channels×time → B×tokens×width. A last short one is dropped."""

    def __init__(self, channels: int, width: int, steps: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(channels, width, steps, stride=steps)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(x).transpose(1, 2)


class Positions(nn.Module):
    """Add a learned vector for every position."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(0.02 * torch.randn(length, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.vectors


class TimeLast(nn.Module):
    """B×time×width → B×width×time."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


def _gru(spec: Spec) -> Model:
    """A convolution over four steps and a GRU layer in each direction; features are the mean over time."""
    w, (channels, time) = spec.base_width, spec.inputs.shape
    trunk = nn.Sequential(Patches(channels, w, min(STRIDE, time)), nn.ReLU(), BiGRU(w, w), TimeLast(), AsMap())
    return spec.model(trunk, global_pool(), nn.Linear(2 * w, spec.num_classes), map_dim=2 * w, feature_dim=2 * w)


def _transformer(spec: Spec) -> Model:
    """Tokens of eight time steps with learned positions, two encoder layers; features are the mean over tokens."""
    w, (channels, time) = spec.base_width, spec.inputs.shape
    patch = min(PATCH, time)
    layers = [Patches(channels, w, patch), Positions(time // patch, w), transformer(w, layers=2), TimeLast(), AsMap()]
    trunk = nn.Sequential(*layers)
    return spec.model(trunk, global_pool(), nn.Linear(w, spec.num_classes), map_dim=w, feature_dim=w)


ARCHITECTURES = {
    "cnn1d": Architecture("three 1-D convolutions with BatchNorm; @WIDTH = first width (32)", _cnn1d, 32, "series"),
    "gru": Architecture("GRU in both directions; @WIDTH = hidden units a direction (48)", _gru, 48, "series"),
    "transformer": Architecture(
        "two transformer layers on windows of time; @WIDTH = width of a token (64)", _transformer, 64, "series"
    ),
}
