"""Layers of known architectures that compute the same with fewer kernels on a GPU. Weights and their names stay.

At 32×32 a training step of MobileNet or EfficientNet is a thousand small kernels, and each norm and activation reads
and writes all of memory. Here a norm, its activation and the operations around it share one pass, and a pointwise
convolution is a matrix product. Layers of other kinds, and all layers on a CPU, stay torch's own.
"""

import math
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.efficientnet import MBConv
from torchvision.models.googlenet import BasicConv2d
from torchvision.models.mobilenetv2 import InvertedResidual
from torchvision.models.resnet import BasicBlock, Bottleneck
from torchvision.ops import Conv2dNormActivation, SqueezeExcitation, StochasticDepth

from fedchoir.engines.local.fused.autograd import (
    Depthwise,
    NormAct,
    NormAddRelu,
    NormDepthwise,
    NormSqueezeExcite,
    Pointwise,
    Statistics,
)
from fedchoir.engines.local.fused.common import INTERPRETED, channels_last
from fedchoir.engines.local.fused.depthwise import FILTER_SIZES
from fedchoir.engines.local.fused.kernels.common import LANES, NONE, RELU, RELU6, SILU
from fedchoir.engines.local.fused.norm import TILE, moments
from fedchoir.models.strided_pointwise import StridedPointwise

ACTIVATIONS: dict[type[nn.Module], int] = {nn.ReLU: RELU, nn.ReLU6: RELU6, nn.SiLU: SILU}
SYMBOLS: dict[type[nn.Module], str] = {
    nn.Conv2d: "c", StridedPointwise: "c", nn.BatchNorm2d: "n", nn.ReLU: "r", nn.ReLU6: "6", nn.SiLU: "s",
    nn.Sigmoid: "g", nn.AdaptiveAvgPool2d: "p", StochasticDepth: "d",
}  # fmt: skip
CONTAINERS = (nn.Sequential, Conv2dNormActivation, SqueezeExcitation)
STRUCTURES: dict[type[nn.Module], str] = {
    nn.Sequential: "cnr", Conv2dNormActivation: "cn[r6s]?", BasicConv2d: "cn",
    BasicBlock: r"cnrcn(\(cn\))?", Bottleneck: r"cncncnr(\(cn\))?",
    InvertedResidual: r"\((\(cn[r6s]\))?\(cn[r6s]\)cn\)",
    MBConv: r"\((\(cn[r6s]\))?\(cn[r6s]\)(\(pccsg\))?\(cn\)\)d",
}  # fmt: skip
"""What each kind of layer consists of; see `_structure`. Where it is something else, somebody has replaced a layer."""
MAX_PROGRAMS = 65535  # along the axis of positions, which is the launch's second: CUDA's limit


class FusedChain(nn.Sequential):
    """A convolution, a norm and possibly an activation."""

    def forward(self, x: Tensor) -> Tensor:
        conv, norm, *act = self
        return _conv_norm_act(x, conv, norm, _code(act)) if _can_fuse(self, x) else super().forward(x)

    def __getitem__(self, index: Any) -> Any:
        """A layer, or for a slice a plain sequence: torch's would have this class, whose forward pass needs all."""
        return nn.Sequential(OrderedDict(self.named_children()))[index]


class FusedBasicConv2d(BasicConv2d):
    """A convolution of GoogLeNet with norm and ReLU."""

    def forward(self, x: Tensor) -> Tensor:
        return _conv_norm_act(x, self.conv, self.bn, RELU) if _can_fuse(self, x) else super().forward(x)


class FusedBasicBlock(BasicBlock):
    """The residual block of the small ResNets."""

    def forward(self, x: Tensor) -> Tensor:
        if not _can_fuse(self, x):
            return super().forward(x)
        return _residual(x, self.downsample, (self.conv1, self.bn1), (self.conv2, self.bn2))


class FusedBottleneck(Bottleneck):
    """The residual block of the large ResNets."""

    def forward(self, x: Tensor) -> Tensor:
        if not _can_fuse(self, x):
            return super().forward(x)
        stages = (self.conv1, self.bn1), (self.conv2, self.bn2), (self.conv3, self.bn3)
        return _residual(x, self.downsample, *stages)


class FusedInvertedResidual(InvertedResidual):
    """The block of MobileNet."""

    def forward(self, x: Tensor) -> Tensor:
        if not _can_fuse(self, x):
            return super().forward(x)
        return _inverted_residual(x, self.conv, self.use_res_connect, None)


class FusedMBConv(MBConv):
    """The block of EfficientNet, with squeeze-and-excitation and stochastic depth."""

    def forward(self, x: Tensor) -> Tensor:
        if not _can_fuse(self, x):
            return super().forward(x)
        scale, p = None, self.stochastic_depth.p
        if self.use_res_connect and self.training and p > 0:
            scale = F.dropout(torch.ones(len(x), device=x.device), p)
        return _inverted_residual(x, self.block, self.use_res_connect, scale)


class MeanPool(nn.AdaptiveAvgPool2d):
    """The mean of each channel, in one kernel instead of a general pooling."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((-2, -1), keepdim=True)


FUSED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Sequential: FusedChain, Conv2dNormActivation: FusedChain, BasicConv2d: FusedBasicConv2d,
    BasicBlock: FusedBasicBlock, Bottleneck: FusedBottleneck,
    InvertedResidual: FusedInvertedResidual, MBConv: FusedMBConv,
}  # fmt: skip
DEPTHWISE = (FusedInvertedResidual, FusedMBConv)  # their depthwise convolutions are kernels of this package


def use_fused_layers(model: nn.Module, watched: Iterable[nn.Module] = ()) -> None:
    """Replace, in place, the classes of all layers for which there is a fused one.

    A layer around a ``watched`` module stays, since a fused one does not call what is inside it.
    """
    whole = [m for m in model.modules() if isinstance(m, InvertedResidual | MBConv | BasicBlock | Bottleneck)]
    inside = {id(inner) for block in whole for inner in _inner(block)}
    kept = {id(module) for module in watched}
    for layer in model.modules():
        if id(layer) not in inside and _is_supported(layer) and not any(id(m) in kept for m in _inner(layer)):
            layer.__class__ = FUSED[type(layer)]
        if type(layer) is nn.AdaptiveAvgPool2d and layer.output_size in (1, (1, 1)):
            layer.__class__ = MeanPool
    for conv in (m for layer in model.modules() if isinstance(layer, DEPTHWISE) for m in layer.modules()):
        if is_depthwise(conv):  # C×1×k×k filters in memory as k×k×1×C, as the kernels read them
            conv.weight.data = conv.weight.data.permute(2, 3, 1, 0).contiguous().permute(3, 2, 0, 1)


def _inner(layer: nn.Module) -> Iterator[nn.Module]:
    return (m for m in layer.modules() if m is not layer)


def is_depthwise(layer: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Whether the depthwise kernels can compute it: one square filter per channel, no bias, no dilation."""
    if type(layer) is not nn.Conv2d or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return False
    depthwise = layer.groups == layer.in_channels == layer.out_channels > 1 and layer.bias is None
    square = len(set(layer.kernel_size)) == len(set(layer.stride)) == len(set(layer.padding)) == 1
    return depthwise and square and layer.dilation == (1, 1) and layer.kernel_size[0] in FILTER_SIZES


def _is_pointwise(conv: nn.Conv2d) -> bool:
    one = conv.kernel_size == conv.stride == (1, 1)
    return one and conv.padding == (0, 0) and conv.groups == 1 and conv.bias is None


def _norms(layer: nn.Module) -> list[nn.BatchNorm2d]:
    return [m for m in layer.modules() if isinstance(m, nn.BatchNorm2d)]


def _structure(layer: nn.Module) -> str:
    """The layers inside, a character for each and parentheses for containers. A question mark is a layer of another
    kind, or one with hooks, which a fused layer would not call."""
    text = ""
    for m in layer.children():
        if m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks:
            text += "?"
        elif type(m) in CONTAINERS:
            text += f"({_structure(m)})"
        else:
            text += SYMBOLS.get(type(m), "?")
    return text


def _is_supported(layer: nn.Module) -> bool:
    """Whether the kernels know all its layers: channels in eights, batch norms with weights and running statistics."""
    if type(layer) not in FUSED or not re.fullmatch(STRUCTURES[type(layer)], _structure(layer)):
        return False
    usual = all(
        n.affine and n.track_running_stats and n.momentum and n.num_features % LANES == 0 for n in _norms(layer)
    )
    convs = [m for m in layer.modules() if isinstance(m, nn.Conv2d)]
    mobile = isinstance(layer, InvertedResidual | MBConv)
    return usual and all(m.groups == 1 or is_depthwise(m) for m in convs) and (not mobile or _is_usual_mobile(layer))


def _is_usual_mobile(block: nn.Module) -> bool:
    """Whether its convolutions are pointwise, depthwise, pointwise, and those of the excitation have biases."""
    layers: Any = next(block.children())
    *expansion, (conv, *_), excitation, (project, _) = _stages(layers)
    pointwise = all(map(_is_pointwise, (project, *(stage[0] for stage in expansion))))
    squeeze = [] if excitation is None else [excitation.fc1, excitation.fc2]
    return pointwise and is_depthwise(conv) and all(c.kernel_size == (1, 1) and c.bias is not None for c in squeeze)


def _can_fuse(layer: nn.Module, x: Tensor) -> bool:
    """On a GPU, with maps that one launch covers, and with all norms in one mode; in eval mode without gradients."""
    norms = _norms(layer)
    if not (x.is_cuda or INTERPRETED) or not _fits(layer, norms, x):
        return False
    training = {norm.training for norm in norms}
    return training == {True} or (training == {False} and not torch.is_grad_enabled())


def _fits(layer: nn.Module, norms: list[nn.BatchNorm2d], x: Tensor) -> bool:
    """Whether indices fit 32 bits and one launch covers all positions. The first convolution's output has the most."""
    conv = next(m for m in layer.modules() if isinstance(m, nn.Conv2d))
    padding = [k // 2 for k in conv.kernel_size] if isinstance(conv.padding, str) else conv.padding
    sides = zip(x.shape[2:], conv.kernel_size, conv.stride, padding, strict=True)
    positions = len(x) * math.prod((n + 2 * p - k) // s + 1 for n, k, s, p in sides)
    widest = max(norm.num_features for norm in norms)
    covered = positions <= MAX_PROGRAMS * TILE["BP"] and len(x) <= MAX_PROGRAMS
    return covered and x.numel() < 2**28 and positions * widest < 2**31


def _cast(x: Tensor) -> Tensor:
    """Channels-last, in autocast's dtype where that is on."""
    kind = x.device.type
    return channels_last(x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x)


def _code(act: list[nn.Module]) -> int:
    return ACTIVATIONS[type(act[0])] if act else NONE


def _statistics(x: Tensor, layer: nn.BatchNorm2d) -> Statistics:
    return moments(x, layer) if layer.training else _running_statistics(layer)


def _running_statistics(layer: nn.BatchNorm2d) -> Statistics:
    assert layer.running_mean is not None
    assert layer.running_var is not None
    return layer.running_mean, (layer.running_var + layer.eps).rsqrt()


def _norm_act(
    x: Tensor, layer: nn.BatchNorm2d, act: int, statistics: Statistics | None = None,
    *, residual: Tensor | None = None, image_scale: Tensor | None = None,
) -> Tensor:  # fmt: skip
    statistics = statistics or _statistics(x, layer)
    return NormAct.apply(x, layer.weight, layer.bias, residual, image_scale, statistics, act)


def _conv(x: Tensor, conv: Any) -> Tensor:
    return Pointwise.apply(_cast(x), conv.weight) if _is_pointwise(conv) else channels_last(conv(x))


def _conv_norm_act(x: Tensor, conv: Any, norm: Any, act: int) -> Tensor:
    return _norm_act(_conv(x, conv), norm, act)


def _residual(x: Tensor, downsample: Any, *stages: tuple[nn.Module, nn.BatchNorm2d]) -> Tensor:
    """Convolve, normalise and rectify; in the last stage add the input, which ``downsample`` fits, before the ReLU."""
    *first, (conv, norm) = stages
    h = x
    for stage in first:
        h = _conv_norm_act(h, *stage, RELU)
    h = _conv(h, conv)
    residual = _cast(x)
    if downsample is not None:
        projection, last = downsample.children()
        residual = _conv_norm_act(x, projection, last, NONE)
    return NormAddRelu.apply(h, norm.weight, norm.bias, residual, _statistics(h, norm))


def _inverted_residual(x: Tensor, layers: nn.Sequential, residual: bool, image_scale: Tensor | None) -> Tensor:
    """[Expand], convolve depthwise, [squeeze and excite], project, [add the input]."""
    x = _cast(x)
    *expansion, (conv, norm, act), excitation, (project, last) = _stages(layers)
    if expansion:
        wide, norm_1, act_1 = expansion[0]
        h = Pointwise.apply(x, wide.weight)
        statistics = _statistics(h, norm_1)
        h, *statistics = NormDepthwise.apply(
            h, norm_1.weight, norm_1.bias, conv.weight, statistics, _code([act_1]), conv, norm
        )
    else:
        h, *statistics = Depthwise.apply(x, conv.weight, conv, norm)
    if not norm.training:
        statistics = _running_statistics(norm)
    if excitation is None:
        h = _norm_act(h, norm, _code([act]), statistics)
    else:
        first, second = excitation.fc1, excitation.fc2
        weights = (first.weight, first.bias, second.weight, second.bias)
        h = NormSqueezeExcite.apply(h, norm.weight, norm.bias, *weights, statistics, _code([act]))
    h = Pointwise.apply(h, project.weight)
    return _norm_act(h, last, NONE, residual=x if residual else None, image_scale=image_scale)


def _stages(layers: nn.Sequential) -> list[Any]:
    """[(conv, norm, act) of the expansion], (conv, norm, act) depthwise, excitation or None, (conv, norm)."""
    modules: list[Any] = list(layers)
    blocks = [tuple(m) for m in modules if type(m) is Conv2dNormActivation and len(m) == 3]
    excitation = next((m for m in modules if isinstance(m, SqueezeExcitation)), None)
    last = tuple(modules[-1]) if isinstance(modules[-1], Conv2dNormActivation) else tuple(modules[-2:])
    return [*blocks, excitation, last]
