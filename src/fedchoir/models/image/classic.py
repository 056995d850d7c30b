"""Networks without shortcuts, and the small networks of the federated papers.

``@WIDTH`` is the number of channels of the first convolution for ``vgg9``, ``alexnet``, ``simple_cnn`` and ``cnn2``
(other widths scale with it) and of hidden units for ``mlp``; ``logistic`` has none.
"""

import math

from torch import nn

from fedchoir.models.base import Architecture, GridPool, Model, Spec, conv_norm_relu, init_kaiming


def _conv_relu(inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding), nn.ReLU(inplace=True)]


def _vgg9(spec: Spec) -> Model:
    """Six 3×3 convolutions with BatchNorm, widths W·(1,2,4,4,8,8), and three linear layers, two 16·W wide.

    The VGG-9 of the federated papers (W = 32), with BatchNorm so that it trains from scratch at the learning rates of
    the others. No dropout. 32×32 → 4×4.
    """
    w = spec.base_width
    trunk = nn.Sequential(
        conv_norm_relu(3, w),
        conv_norm_relu(w, 2 * w),
        nn.MaxPool2d(2),
        conv_norm_relu(2 * w, 4 * w),
        conv_norm_relu(4 * w, 4 * w),
        nn.MaxPool2d(2),
        conv_norm_relu(4 * w, 8 * w),
        conv_norm_relu(8 * w, 8 * w),
        nn.MaxPool2d(2),
    )
    init_kaiming(trunk)
    hidden = 16 * w
    neck = nn.Sequential(GridPool(4), nn.Linear(8 * w * 16, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
    return spec.model(trunk, neck, nn.Linear(hidden, spec.num_classes), map_dim=8 * w, feature_dim=hidden)


def _alexnet(spec: Spec) -> Model:
    """AlexNet's five convolutions, widths W·(1,3,6,4,4), as 3×3 with 2×2 pooling; linear layers 16·W wide.

    Without BatchNorm, as in Krizhevsky et al.; their dropout of 0.5 precedes both hidden layers, so it belongs to the
    features. Hidden layers 1024 wide, not 4096, because the input is small. 32×32 → 2×2.
    """
    w = spec.base_width
    trunk = nn.Sequential(
        *_conv_relu(3, w, 3, stride=2, padding=1),
        nn.MaxPool2d(2),
        *_conv_relu(w, 3 * w, 3, padding=1),
        nn.MaxPool2d(2),
        *_conv_relu(3 * w, 6 * w, 3, padding=1),
        *_conv_relu(6 * w, 4 * w, 3, padding=1),
        *_conv_relu(4 * w, 4 * w, 3, padding=1),
        nn.MaxPool2d(2),
    )
    hidden = 16 * w
    neck = nn.Sequential(
        GridPool(2),
        nn.Dropout(0.5),
        nn.Linear(4 * w * 4, hidden),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
    )
    _init_plain(trunk)
    _init_plain(neck)
    return spec.model(trunk, neck, nn.Linear(hidden, spec.num_classes), map_dim=4 * w, feature_dim=hidden)


def _init_plain(module: nn.Module) -> None:
    """He et al.'s initialisation by fan in: it keeps the scale of the activations without BatchNorm."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def _simple_cnn(spec: Spec) -> Model:
    """Two 5×5 convolutions, widths W and 2·W, each with pooling by 2, and a hidden layer of 16·W (FedAvg's CNN).

    McMahan et al., AISTATS 2017, with W = 32; convolutions without padding, as in LeNet. 32×32 → 5×5.
    """
    w = spec.base_width
    trunk = nn.Sequential(*_conv_relu(3, w, 5), nn.MaxPool2d(2), *_conv_relu(w, 2 * w, 5), nn.MaxPool2d(2))
    neck = nn.Sequential(GridPool(5), nn.Linear(2 * w * 25, 16 * w), nn.ReLU())
    return spec.model(trunk, neck, nn.Linear(16 * w, spec.num_classes), map_dim=2 * w, feature_dim=16 * w)


def _cnn2(spec: Spec) -> Model:
    """Two 3×3 convolutions, widths W and 2·W, one pooling by 2, a hidden layer of 4·W; dropout 0.25 and 0.5.

    The CNN of Reddi et al., ICLR 2021, with Glorot initialisation; pfl-research's CIFAR-10 benchmark (W = 32).
    32×32 → 14×14.
    """
    w = spec.base_width
    trunk = nn.Sequential(*_conv_relu(3, w, 3), *_conv_relu(w, 2 * w, 3), nn.MaxPool2d(2))
    neck = nn.Sequential(GridPool(14), nn.Dropout(0.25), nn.Linear(2 * w * 14 * 14, 4 * w), nn.ReLU())
    head = nn.Sequential(nn.Dropout(0.5), nn.Linear(4 * w, spec.num_classes))
    for layer in (*trunk.modules(), *neck.modules(), *head.modules()):
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
    return spec.model(trunk, neck, head, map_dim=2 * w, feature_dim=4 * w)


def _mlp(spec: Spec) -> Model:
    """Two hidden layers of W units on the pixels (McMahan et al.'s 2NN). The feature map is the image."""
    w = spec.base_width
    pixels = math.prod(spec.inputs.shape)
    neck = nn.Sequential(nn.Flatten(1), nn.Linear(pixels, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU())
    return spec.model(nn.Identity(), neck, nn.Linear(w, spec.num_classes), map_dim=3, feature_dim=w)


def _logistic(spec: Spec) -> Model:
    """Multinomial logistic regression: the features are the pixels."""
    pixels = math.prod(spec.inputs.shape)
    head = nn.Linear(pixels, spec.num_classes)
    return spec.model(nn.Identity(), nn.Flatten(1), head, map_dim=3, feature_dim=pixels)


ARCHITECTURES = {
    "vgg9": Architecture("VGG-9 with BatchNorm, 6 convolutions; @WIDTH = first width (32)", _vgg9, 32),
    "alexnet": Architecture("AlexNet for small images, 5 convolutions; @WIDTH = first width (64)", _alexnet, 64),
    "simple_cnn": Architecture("two 5×5 convolutions (FedAvg's CNN); @WIDTH = first width (32)", _simple_cnn, 32),
    "cnn2": Architecture("two 3×3 convolutions (Reddi et al.'s CNN); @WIDTH = first width (32)", _cnn2, 32),
    "mlp": Architecture("two hidden layers on the pixels; @WIDTH = hidden units (200)", _mlp, 200),
    "logistic": Architecture("logistic regression on the pixels", _logistic, None),
}
