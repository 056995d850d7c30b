"""Layers that compute the same with fewer or better kernels on a GPU. Weights and their names stay as they are."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import SqueezeExcitation

from fedchoir.engines.depthwise import DepthwiseConv2d, channels_fastest, is_depthwise


class MeanPool(nn.AdaptiveAvgPool2d):
    """The mean of each map, written so that the compiler can fuse it, and its gradient, with what is around it."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3), keepdim=True)


class LinearExcitation(SqueezeExcitation):
    """Its convolutions see one position: they are matrix products, and cuDNN is slow at them as convolutions."""

    def forward(self, x: Tensor) -> Tensor:
        squeezed = self.activation(_linear(x.mean((2, 3)), self.fc1))
        return self.scale_activation(_linear(squeezed, self.fc2))[:, :, None, None] * x


def _linear(x: Tensor, layer: nn.Conv2d) -> Tensor:
    return F.linear(x, layer.weight.flatten(1), layer.bias)


def use_lean_layers(model: nn.Module) -> None:
    """Let ``model``'s layers compute in the ways here, where there is one for them."""
    for layer in model.modules():
        if is_depthwise(layer):
            layer.weight.data = channels_fastest(layer.weight.data)
            layer.__class__ = DepthwiseConv2d
        elif type(layer) is nn.AdaptiveAvgPool2d and layer.output_size in (1, (1, 1)):
            layer.__class__ = MeanPool
        elif type(layer) is SqueezeExcitation:
            layer.__class__ = LinearExcitation
