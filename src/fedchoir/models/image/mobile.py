"""torchvision's MobileNetV2 and EfficientNet-B0 with smaller strides for 32×32 images.

``@WIDTH`` is torchvision's width multiplier (channels are rounded to multiples of 8); depth never changes.
BatchNorm's running variance is initially 1, far above that of the activations: accuracy in eval mode is near chance
for about the first 60 training steps.

``efficientnet_b0_cifar`` is the network of FCCL's and FCCL+'s released code: 320 features, because it has no last
convolution to 1280, no stochastic depth (its rate is never raised from 0), and torch's initial weights.
"""

from torch import nn
from torchvision.models.efficientnet import EfficientNet, MBConvConfig
from torchvision.models.mobilenetv2 import MobileNetV2

from fedchoir.models.base import Architecture, Model, Spec, global_pool

# Expansion, channels, blocks, stride of each stage. Total stride 8: 32×32 → 4×4.
_MOBILENET_V2 = [
    [1, 16, 1, 1], [6, 24, 2, 1], [6, 32, 3, 2], [6, 64, 4, 2], [6, 96, 3, 1], [6, 160, 3, 2], [6, 320, 1, 1],
]  # fmt: skip

# Expansion, kernel, stride, input channels, output channels, blocks. Total stride 16: 32×32 → 2×2.
_EFFICIENTNET_B0 = [
    (1, 3, 1, 32, 16, 1), (6, 3, 2, 16, 24, 2), (6, 5, 2, 24, 40, 2), (6, 3, 2, 40, 80, 3), (6, 5, 1, 80, 112, 3),
    (6, 5, 2, 112, 192, 4), (6, 3, 1, 192, 320, 1),
]  # fmt: skip
_DROPOUT = 0.2


def _model(spec: Spec, trunk: nn.Sequential, width: int) -> Model:
    """torchvision's trunk with a stem of stride 1 and a new classifier.

    torchvision's classifier is not used: its dropout may be in place, which would modify the features, and
    EfficientNet's initial weights of up to 1/√num_classes are large for few classes.
    """
    stem = next(layer for layer in trunk.modules() if isinstance(layer, nn.Conv2d))
    stem.stride = (1, 1)
    head = nn.Sequential(nn.Dropout(_DROPOUT), nn.Linear(width, spec.num_classes))
    return spec.model(trunk, global_pool(), head, map_dim=width, feature_dim=width)


def _mobilenet_v2(spec: Spec) -> Model:
    """Features stay 1280 wide for multipliers below 1, as in the paper (Sandler et al., CVPR 2018)."""
    net = MobileNetV2(1, width_mult=spec.width, inverted_residual_setting=_MOBILENET_V2)
    return _model(spec, net.features, net.last_channel)


def _efficientnet_b0(spec: Spec) -> Model:
    """Features are 1280·multiplier wide. Stochastic depth (0.2) acts on the trunk in training."""
    stages = [MBConvConfig(*stage, width_mult=spec.width) for stage in _EFFICIENTNET_B0]
    net = EfficientNet(stages, dropout=_DROPOUT, num_classes=1)
    return _model(spec, net.features, net.classifier[-1].in_features)


def _efficientnet_b0_cifar(spec: Spec) -> Model:
    """Features are 320·multiplier wide."""
    stages = [MBConvConfig(*stage, width_mult=spec.width) for stage in _EFFICIENTNET_B0]
    trunk = EfficientNet(stages, dropout=_DROPOUT, stochastic_depth_prob=0.0, num_classes=1).features[:-1]
    for layer in trunk.modules():
        if isinstance(layer, nn.Conv2d):
            layer.reset_parameters()
    return _model(spec, trunk, stages[-1].out_channels)


ARCHITECTURES = {
    "mobilenet_v2": Architecture(
        "MobileNetV2, total stride 8 instead of 32; @WIDTH = width multiplier (1.0)", _mobilenet_v2, 1.0
    ),
    "efficientnet_b0": Architecture(
        "EfficientNet-B0, total stride 16 instead of 32; @WIDTH = width multiplier (1.0)", _efficientnet_b0, 1.0
    ),
    "efficientnet_b0_cifar": Architecture(
        "EfficientNet-B0 of FCCL's released code: 320 features, no stochastic depth; @WIDTH = width multiplier (1.0)",
        _efficientnet_b0_cifar,
        1.0,
    ),
}
