"""Random networks that embed samples. All sites derive the same ones from the seed: their weights are no secret."""

from collections.abc import Callable

import torch
from torch import nn

from fedchoir.utils.input_spec import InputSpec
from fedchoir.utils.rng import seeded

SMALLEST_MAP = 4  # a feature map is halved while it stays at least so large
MLP_LAYERS = 2
BIAS_SPREAD = 0.5  # of the biases for series: without normalisation they tell levels apart

Block = Callable[[int, int, int], list[nn.Module]]
"""Layers for a number of channels in and out, at a given side of the feature map."""


def random_network(inputs: InputSpec, width: int, seed: int, *labels: int | str) -> nn.Module:
    """A network with random weights: samples B×shape → embeddings B×d.

    Images: convolutions with instance normalisation, halved to a map of 4 to 7. Series: the same without normalisation,
    which would hide their level and amplitude. Other samples: two hidden layers. ``labels`` name the draw.

    >>> random_network(InputSpec.image(16), 8, 0)(torch.zeros(2, 3, 16, 16)).shape
    torch.Size([2, 128])
    """
    with seeded(seed, "random network", *labels):
        if inputs.modality == "image":
            return _convolutional(inputs.shape, width, _image_block, nn.AvgPool2d).eval()
        if inputs.modality == "series":
            return _convolutional(inputs.shape, width, _series_block, nn.AvgPool1d).eval()
        return _layers(inputs, 4 * width).eval()


def _convolutional(shape: tuple[int, ...], width: int, block: Block, pool: type[nn.Module]) -> nn.Sequential:
    channels, side = shape[0], min(shape[1:])
    layers: list[nn.Module] = []
    while True:
        layers += block(channels, width, side)
        channels = width
        if side < 2 * SMALLEST_MAP:
            return nn.Sequential(*layers, nn.Flatten())
        layers.append(pool(2))
        side //= 2
        if side < 2 * SMALLEST_MAP:
            return nn.Sequential(*layers, nn.Flatten())


def _image_block(channels: int, width: int, side: int) -> list[nn.Module]:
    normalise = nn.GroupNorm(width, width) if side > 1 else nn.Identity()  # a single place has no deviation
    return [nn.Conv2d(channels, width, 3, padding=1), normalise, nn.ReLU()]


def _series_block(channels: int, width: int, side: int) -> list[nn.Module]:
    convolution = nn.Conv1d(channels, width, 3, padding=1)
    nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
    assert convolution.bias is not None
    nn.init.normal_(convolution.bias, std=BIAS_SPREAD)
    return [convolution, nn.ReLU()]


def _layers(inputs: InputSpec, width: int) -> nn.Sequential:
    size = torch.Size(inputs.shape).numel()
    layers: list[nn.Module] = [nn.Flatten()]
    for _ in range(MLP_LAYERS):
        layers += [nn.Linear(size, width), nn.ReLU()]
        size = width
    return nn.Sequential(*layers)
