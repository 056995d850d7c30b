"""ResNets for small images: 3×3 stem of stride 1, no max-pooling, basic blocks (He et al., CVPR 2016).

In the federated papers ResNet10 has [1,1,1,1] blocks, ResNet12 [2,1,1,1], ResNet18 [2,2,2,2], ResNet34 [3,4,6,3], all
with widths 64·(1,2,4,8). ResNet20 is that of He et al.'s CIFAR section: [3,3,3] blocks of widths 16·(1,2,4), here with
a 1×1 convolution where the shape changes. ``@WIDTH`` is the first stage's width.

Names with ``_gn`` have GroupNorm (Wu and He, ECCV 2018) instead of BatchNorm, whose statistics differ between clients.
"""

from functools import partial

from torch import nn
from torchvision.models.resnet import BasicBlock

from fedchoir.models.base import Architecture, Model, Norm, Spec, conv_norm_relu, global_pool, init_kaiming


def group_norm(channels: int) -> nn.GroupNorm:
    """GroupNorm over groups of 16 channels, or over all channels where 16 does not divide them."""
    return nn.GroupNorm(channels // 16 if channels % 16 == 0 else 1, channels)


def _block(inputs: int, outputs: int, stride: int, norm: Norm) -> BasicBlock:
    shortcut = None
    if stride != 1 or inputs != outputs:
        shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False), norm(outputs))
    return BasicBlock(inputs, outputs, stride, shortcut, norm_layer=norm)


def _stage(inputs: int, outputs: int, blocks: int, stride: int, norm: Norm) -> nn.Sequential:
    first = _block(inputs, outputs, stride, norm)
    return nn.Sequential(first, *(_block(outputs, outputs, 1, norm) for _ in range(blocks - 1)))


def _resnet(spec: Spec, blocks: tuple[int, ...], norm: Norm) -> Model:
    """Stage s has width W·2^s and, from the second on, halves the side: 32×32 → 4×4 with four stages."""
    width = spec.base_width
    layers: list[nn.Module] = [conv_norm_relu(3, width, norm)]
    for depth, count in enumerate(blocks):
        outputs = spec.base_width * 2**depth
        layers.append(_stage(width, outputs, count, stride=1 if depth == 0 else 2, norm=norm))
        width = outputs
    trunk = nn.Sequential(*layers)
    init_kaiming(trunk)
    return spec.model(trunk, global_pool(), nn.Linear(width, spec.num_classes), map_dim=width, feature_dim=width)


def _architecture(blocks: tuple[int, ...], width: int, norm: Norm = nn.BatchNorm2d) -> Architecture:
    stages = ", ".join(str(width * 2**depth) for depth in range(len(blocks)))
    counts = "+".join(map(str, blocks))
    grouped = ", GroupNorm" if norm is group_norm else ""
    summary = f"ResNet with {counts} basic blocks of widths {stages}, 3×3 stem{grouped}; @WIDTH = first width ({width})"
    return Architecture(summary, partial(_resnet, blocks=blocks, norm=norm), width)


ARCHITECTURES = {
    "resnet10": _architecture((1, 1, 1, 1), 64),
    "resnet12": _architecture((2, 1, 1, 1), 64),
    "resnet18": _architecture((2, 2, 2, 2), 64),
    "resnet20": _architecture((3, 3, 3), 16),
    "resnet34": _architecture((3, 4, 6, 3), 64),
    "resnet10_gn": _architecture((1, 1, 1, 1), 64, group_norm),
    "resnet12_gn": _architecture((2, 1, 1, 1), 64, group_norm),
    "resnet18_gn": _architecture((2, 2, 2, 2), 64, group_norm),
}
