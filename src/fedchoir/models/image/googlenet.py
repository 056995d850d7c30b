"""GoogLeNet (Szegedy et al., CVPR 2015) from torchvision's Inception blocks, fitted to 32×32 images.

The stem's 7×7 convolution is 3×3 with stride 1, and the first max-pooling is removed: total stride 8, not 32.
No auxiliary heads, no input transform. ``@WIDTH`` multiplies every channel count (minimum 1).
Initialised like the ResNets: with torchvision's deviation of 0.01 BatchNorm's running variance, initially 1, is too
large for some hundred steps, and accuracy in eval mode is near chance until then.

``googlenet_cifar`` is the network of FCCL's and FCCL+'s released code: one 3×3 convolution from 3 to 192 channels as
stem, total stride 4, two 3×3 convolutions in the third branch, biases beside BatchNorm, no dropout, torch's initial
weights.
"""

import torch
from torch import Tensor, nn
from torchvision.models.googlenet import BasicConv2d, Inception

from fedchoir.models.base import Architecture, Model, Spec, global_pool, init_kaiming

# Output channels of the branches: 1×1 | 1×1, 3×3 | 1×1, second 3×3 | after pooling. None halves the side.
_BLOCKS: tuple[tuple[int, ...] | None, ...] = (
    None, (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64),
    None, (192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128),
    None, (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128),
)  # fmt: skip


def _scaled(channels: int, multiplier: float) -> int:
    return max(1, round(channels * multiplier))


def _inception(inputs: int, branches: tuple[int, ...], multiplier: float) -> tuple[Inception, int]:
    """One block and its number of output channels."""
    widths = [_scaled(width, multiplier) for width in branches]
    one, _, three, _, five, pool = widths
    return Inception(inputs, *widths), one + three + five + pool


def _googlenet(spec: Spec) -> Model:
    first, width = _scaled(64, spec.width), _scaled(192, spec.width)
    layers: list[nn.Module] = [
        BasicConv2d(3, first, kernel_size=3, padding=1),
        BasicConv2d(first, first, kernel_size=1),
        BasicConv2d(first, width, kernel_size=3, padding=1),
    ]
    for branches in _BLOCKS:
        if branches is None:
            layers.append(nn.MaxPool2d(3, stride=2, ceil_mode=True))
        else:
            block, width = _inception(width, branches, spec.width)
            layers.append(block)
    trunk = nn.Sequential(*layers)
    head = nn.Sequential(nn.Dropout(0.2), nn.Linear(width, spec.num_classes))
    init_kaiming(trunk)
    return spec.model(trunk, global_pool(), head, map_dim=width, feature_dim=width)


def _convolutions(inputs: int, *layers: tuple[int, int]) -> nn.Sequential:
    """Convolutions (kernel, channels) with BatchNorm and ReLU, which keep the side."""
    made: list[nn.Module] = []
    for kernel, channels in layers:
        made += [nn.Conv2d(inputs, channels, kernel, padding=kernel // 2), nn.BatchNorm2d(channels), nn.ReLU()]
        inputs = channels
    return nn.Sequential(*made)


class CifarInception(nn.Module):
    """Four branches side by side: 1×1 | 1×1, 3×3 | 1×1, 3×3, 3×3 | pooling, 1×1."""

    def __init__(self, inputs: int, one: int, reduced3: int, three: int, reduced5: int, five: int, pool: int) -> None:
        super().__init__()
        self.branch1 = _convolutions(inputs, (1, one))
        self.branch2 = _convolutions(inputs, (1, reduced3), (3, three))
        self.branch3 = _convolutions(inputs, (1, reduced5), (3, five), (3, five))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), _convolutions(inputs, (1, pool)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], dim=1)


def _googlenet_cifar(spec: Spec) -> Model:
    width = _scaled(192, spec.width)
    layers: list[nn.Module] = [_convolutions(3, (3, width))]
    for branches in _BLOCKS[1:]:
        if branches is None:
            layers.append(nn.MaxPool2d(3, stride=2, padding=1))
        else:
            one, reduced3, three, reduced5, five, pool = (_scaled(channels, spec.width) for channels in branches)
            layers.append(CifarInception(width, one, reduced3, three, reduced5, five, pool))
            width = one + three + five + pool
    head = nn.Linear(width, spec.num_classes)
    return spec.model(nn.Sequential(*layers), global_pool(), head, map_dim=width, feature_dim=width)


ARCHITECTURES = {
    "googlenet": Architecture(
        "GoogLeNet, total stride 8 instead of 32, no auxiliary heads; @WIDTH = width multiplier (1.0)", _googlenet, 1.0
    ),
    "googlenet_cifar": Architecture(
        "GoogLeNet of FCCL's released code: stem of one convolution, total stride 4; @WIDTH = width multiplier (1.0)",
        _googlenet_cifar,
        1.0,
    ),
}
