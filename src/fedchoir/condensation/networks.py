"""Random networks that embed samples. All sites derive the same ones from the seed: their weights are no secret."""

import torch
from torch import nn

from fedchoir.utils.input_spec import InputSpec
from fedchoir.utils.rng import seeded

SMALLEST_MAP = 4  # a feature map is halved while it stays at least so large
MLP_LAYERS = 2


def random_network(inputs: InputSpec, width: int, seed: int, *labels: int | str) -> nn.Module:
    """A network with random weights: samples B×shape → embeddings B×d.

    Images and series: convolutions with instance normalisation, halved to a map of 4 to 7. Other samples: two hidden
    layers. ``labels`` name the draw.

    >>> random_network(InputSpec.image(16), 8, 0)(torch.zeros(2, 3, 16, 16)).shape
    torch.Size([2, 128])
    """
    with seeded(seed, "random network", *labels):
        if inputs.modality == "image":
            return _convolutional(inputs.shape, width, nn.Conv2d, nn.AvgPool2d).eval()
        if inputs.modality == "series":
            return _convolutional(inputs.shape, width, nn.Conv1d, nn.AvgPool1d).eval()
        return _layers(inputs, 4 * width).eval()


def _convolutional(
    shape: tuple[int, ...], width: int, convolution: type[nn.Module], pool: type[nn.Module]
) -> nn.Sequential:
    channels, side = shape[0], min(shape[1:])
    layers: list[nn.Module] = []
    while True:
        normalise = nn.GroupNorm(width, width) if side > 1 else nn.Identity()  # a single place has no deviation
        layers += [convolution(channels, width, 3, padding=1), normalise, nn.ReLU()]
        channels = width
        if side < 2 * SMALLEST_MAP:
            return nn.Sequential(*layers, nn.Flatten())
        layers.append(pool(2))
        side //= 2
        if side < 2 * SMALLEST_MAP:
            return nn.Sequential(*layers, nn.Flatten())


def _layers(inputs: InputSpec, width: int) -> nn.Sequential:
    size = torch.Size(inputs.shape).numel()
    layers: list[nn.Module] = [nn.Flatten()]
    for _ in range(MLP_LAYERS):
        layers += [nn.Linear(size, width), nn.ReLU()]
        size = width
    return nn.Sequential(*layers)
