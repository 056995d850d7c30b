"""ResNets for small images: 3×3 stem of stride 1, no max-pooling, basic blocks (He et al., CVPR 2016).

The names of the federated papers: ResNet10 = [1,1,1,1] blocks, ResNet12 = [2,1,1,1], ResNet18 = [2,2,2,2],
ResNet34 = [3,4,6,3], widths 64·(1,2,4,8). ResNet20 is the one of He et al.'s CIFAR section: [3,3,3] blocks of
widths 16·(1,2,4), here with a 1×1 convolution where the shape changes. ``@WIDTH`` is the first stage's width.
"""

from __future__ import annotations

from functools import partial

from torch import nn
from torchvision.models.resnet import BasicBlock

from fedchoir.models.base import Architecture, Parts, Spec, conv_bn_relu, global_pool, init_kaiming


def _block(inputs: int, outputs: int, stride: int) -> BasicBlock:
    shortcut = None
    if stride != 1 or inputs != outputs:
        shortcut = nn.Sequential(
            nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
        )
    return BasicBlock(inputs, outputs, stride, shortcut)


def _stage(inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
    first = _block(inputs, outputs, stride)
    return nn.Sequential(first, *(_block(outputs, outputs, 1) for _ in range(blocks - 1)))


def _resnet(spec: Spec, blocks: tuple[int, ...]) -> Parts:
    """Stage s has width W·2^s and, from the second on, halves the side: 32×32 → 4×4 with four stages."""
    width = spec.base_width
    layers: list[nn.Module] = [conv_bn_relu(3, width)]
    for depth, count in enumerate(blocks):
        outputs = spec.base_width * 2**depth
        layers.append(_stage(width, outputs, count, stride=1 if depth == 0 else 2))
        width = outputs
    trunk = nn.Sequential(*layers)
    init_kaiming(trunk)
    return Parts(trunk, global_pool(), nn.Linear(width, spec.num_classes), map_dim=width, feature_dim=width)


def _architecture(blocks: tuple[int, ...], width: int) -> Architecture:
    stages = ", ".join(str(width * 2**depth) for depth in range(len(blocks)))
    counts = "+".join(map(str, blocks))
    summary = f"ResNet with {counts} basic blocks of widths {stages}, 3×3 stem; @WIDTH = first width ({width})"
    return Architecture(summary, partial(_resnet, blocks=blocks), width)


ARCHITECTURES = {
    "resnet10": _architecture((1, 1, 1, 1), 64),
    "resnet12": _architecture((2, 1, 1, 1), 64),
    "resnet18": _architecture((2, 2, 2, 2), 64),
    "resnet20": _architecture((3, 3, 3), 16),
    "resnet34": _architecture((3, 4, 6, 3), 64),
}
