"""Layers that compute the same with fewer and better kernels on a GPU. Weights and their names stay as they are.

At 32×32 a training step of MobileNet or EfficientNet is a thousand small kernels, and each norm and activation goes
through all of memory. Here a norm, its activation and what surrounds it (the sums of a convolution's output, a
residual, excitation) share passes over memory, and a pointwise convolution is a matrix product. Where a layer is none
of those below, or not on a GPU, it is torch's as ever.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.efficientnet import MBConv
from torchvision.models.googlenet import BasicConv2d
from torchvision.models.mobilenetv2 import InvertedResidual
from torchvision.models.resnet import BasicBlock
from torchvision.ops import Conv2dNormActivation, SqueezeExcitation

from fedchoir.engines.local.fused import deferred_weight_grads as aside
from fedchoir.engines.local.fused import depthwise
from fedchoir.engines.local.fused import squeeze_excite as excite
from fedchoir.engines.local.fused.common import INTERPRETED, LANES, NONE, RELU, RELU6, SILU, images
from fedchoir.engines.local.fused.norm import Norm, gradient, image_sums, late_gradient, moments, normalise

ACTIVATIONS: dict[type[nn.Module], int] = {nn.ReLU: RELU, nn.ReLU6: RELU6, nn.SiLU: SILU}
Statistics = tuple[Tensor, Tensor]
"""Mean and 1/deviation of each channel."""


# -- what autograd sees ------------------------------------------------------------------------------------------------


class _Pointwise(torch.autograd.Function):
    """A convolution of size 1 as a matrix product. The weight's gradient is summed, and kept, in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        w = weight.flatten(1).to(x.dtype)
        ctx.save_for_backward(x, w, weight)
        return _maps(_rows(x) @ w.t(), x.shape)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, w, weight = ctx.saved_tensors
        d = _rows(images(dy))
        dx = _maps(d @ w, x.shape) if ctx.needs_input_grad[0] else None

        def dw() -> tuple[Tensor]:
            half = d.is_cuda and d.dtype != torch.float32
            found = torch.mm(d.t(), _rows(x), out_dtype=torch.float32) if half else d.t() @ _rows(x)
            return (found[:, :, None, None],)

        return dx, *aside.gradients(dw, weight)


class _NormAct(torch.autograd.Function):
    """``act(norm(x))``; times ``keep`` for each image, plus ``residual``."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, keep: Tensor | None,
        statistics: Statistics, act: int,
    ) -> Tensor:  # fmt: skip
        norm = Norm(act, *statistics, weight, bias)
        ctx.save_for_backward(x, *norm.tensors(), keep)
        ctx.act = act
        return normalise(x, norm, keep=keep, residual=residual)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, *tensors, keep = ctx.saved_tensors
        dy = images(dy)
        dx, dweight, dbias = gradient(dy, x, Norm(ctx.act, *tensors), keep=keep)
        return dx, dweight, dbias, dy if ctx.needs_input_grad[3] else None, None, None, None


class _NormAddRelu(torch.autograd.Function):
    """``relu(norm(x) + residual)``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor, statistics: Statistics) -> Tensor:
        norm = Norm(RELU, *statistics, weight, bias)
        y = normalise(x, norm, residual=residual, late=True)
        ctx.save_for_backward(x, y, *norm.tensors())
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, y, *tensors = ctx.saved_tensors
        dresidual, dx, dweight, dbias = late_gradient(images(dy), y, x, Norm(RELU, *tensors))
        return dx, dweight, dbias, dresidual, None


class _NormDepthwise(torch.autograd.Function):
    """``conv(act(norm(x)))``, and its statistics."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, filters: Tensor, statistics: Statistics, act: int,
        conv: nn.Conv2d, following: nn.BatchNorm2d,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        norm = Norm(act, *statistics, weight, bias)
        a = normalise(x, norm)
        y, mean, rstd = depthwise.convolve(a, filters, conv, following)
        ctx.save_for_backward(x, a, filters, *norm.tensors())
        ctx.act, ctx.conv = act, conv
        ctx.mark_non_differentiable(mean, rstd)
        ctx.set_materialize_grads(False)  # or each step would fill zeros for them
        return y, mean, rstd

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *none: Any) -> tuple[Tensor | None, ...]:
        x, a, filters, *tensors = ctx.saved_tensors
        dy = images(dy)
        (dfilters,) = aside.gradients(lambda: (depthwise.weight_gradient(a, dy, ctx.conv),), filters)
        dh, dweight, dbias = depthwise.input_gradient(dy, filters, ctx.conv, x, Norm(ctx.act, *tensors))
        dx, _, _ = gradient(dh, x, Norm(NONE, *tensors), sums=(dweight, dbias))
        return dx, dweight, dbias, dfilters, None, None, None, None


class _Depthwise(torch.autograd.Function):
    """``conv(x)`` and its statistics, where no norm comes before."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, filters: Tensor, conv: nn.Conv2d, following: nn.BatchNorm2d
    ) -> tuple[Tensor, Tensor, Tensor]:
        y, mean, rstd = depthwise.convolve(x, filters, conv, following)
        ctx.save_for_backward(x, filters)
        ctx.conv = conv
        ctx.mark_non_differentiable(mean, rstd)
        ctx.set_materialize_grads(False)  # or each step would fill zeros for them
        return y, mean, rstd

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *none: Any) -> tuple[Tensor | None, ...]:
        x, filters = ctx.saved_tensors
        dy = images(dy)
        ones, zeros = (torch.full(x.shape[1:2], value, device=x.device) for value in (1.0, 0.0))
        dx, _, _ = depthwise.input_gradient(dy, filters, ctx.conv, x, Norm(NONE, zeros, ones, ones, zeros))
        return dx, *aside.gradients(lambda: (depthwise.weight_gradient(x, dy, ctx.conv),), filters), None, None


class _NormExcite(torch.autograd.Function):
    """``act(norm(x))`` times the gates that two small layers find from its means."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor,
        statistics: Statistics, act: int,
    ) -> Tensor:  # fmt: skip
        norm, ctx.act = Norm(act, *statistics, weight, bias), act
        mean = image_sums(x, norm)
        gate, hidden = excite.gate(mean, w1, b1, w2, b2, x.dtype == torch.bfloat16)
        ctx.save_for_backward(x, mean, gate, hidden, w1, b1, w2, b2, *norm.tensors())
        return normalise(x, norm, gate=gate)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, gate, hidden, w1, b1, w2, b2, *tensors = ctx.saved_tensors
        norm, dy, half = Norm(ctx.act, *tensors), images(dy), x.dtype == torch.bfloat16
        dz = image_sums(x, norm, dy, gate)
        through, dhidden = excite.back_to_mean(dz, hidden, x[0, 0].numel(), w1, w2, half)
        dlayers = aside.gradients(
            lambda: excite.weight_gradients(dz, mean, hidden, dhidden, w1, w2, half), w1, b1, w2, b2
        )
        dx, dweight, dbias = gradient(dy, x, norm, gate=gate, through=through)
        return dx, dweight, dbias, *dlayers, None, None


def _rows(x: Tensor) -> Tensor:
    """Images as a matrix of positions and channels."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])


def _maps(rows: Tensor, shape: torch.Size) -> Tensor:
    return rows.view(shape[0], *shape[2:], rows.shape[1]).permute(0, 3, 1, 2)


# -- the layers --------------------------------------------------------------------------------------------------------


def _cast(x: Tensor) -> Tensor:
    """As autocast would, where it is on."""
    kind = x.device.type
    return images(x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x)


def _statistics(x: Tensor, layer: nn.BatchNorm2d) -> Statistics:
    return moments(x, layer) if layer.training else running(layer)


def running(layer: nn.BatchNorm2d) -> Statistics:
    assert layer.running_mean is not None
    assert layer.running_var is not None
    return layer.running_mean, (layer.running_var + layer.eps).rsqrt()


def _norm_act(
    x: Tensor, layer: nn.BatchNorm2d, act: int, statistics: Statistics | None = None,
    *, residual: Tensor | None = None, keep: Tensor | None = None,
) -> Tensor:  # fmt: skip
    found = statistics or _statistics(x, layer)
    return _NormAct.apply(x, layer.weight, layer.bias, residual, keep, found, act)


def _conv_norm_act(x: Tensor, conv: Any, norm: Any, act: int) -> Tensor:
    y = _Pointwise.apply(_cast(x), conv.weight) if _is_pointwise(conv) else images(conv(x))
    return _norm_act(y, norm, act)


class FusedChain(nn.Sequential):
    """A convolution, a norm and perhaps an activation."""

    def forward(self, x: Tensor) -> Tensor:
        conv, norm, *act = self
        return _conv_norm_act(x, conv, norm, _code(act)) if _possible(self, x) else super().forward(x)


class FusedBasicConv2d(BasicConv2d):
    """GoogLeNet's."""

    def forward(self, x: Tensor) -> Tensor:
        return _conv_norm_act(x, self.conv, self.bn, RELU) if _possible(self, x) else super().forward(x)


class FusedBasicBlock(BasicBlock):
    """The ResNets'."""

    def forward(self, x: Tensor) -> Tensor:
        if not _possible(self, x):
            return super().forward(x)
        h = images(self.conv2(_conv_norm_act(x, self.conv1, self.bn1, RELU)))
        before = _cast(x)
        if self.downsample is not None:
            conv, norm = self.downsample.children()
            before = _conv_norm_act(x, conv, norm, NONE)
        return _NormAddRelu.apply(h, self.bn2.weight, self.bn2.bias, before, _statistics(h, self.bn2))


def _inverted_residual(x: Tensor, parts: nn.Sequential, residual: bool, keep: Tensor | None) -> Tensor:
    """Expand (perhaps), convolve depthwise, excite (perhaps), project; plus where it came from (perhaps)."""
    x = _cast(x)
    *before, (conv, norm, act), excitation, (project, last) = _stages(parts)
    if before:
        wide, norm_1, act_1 = before[0]
        h = _Pointwise.apply(x, wide.weight)
        found = _statistics(h, norm_1)
        h, *found = _NormDepthwise.apply(h, norm_1.weight, norm_1.bias, conv.weight, found, _code([act_1]), conv, norm)
    else:
        h, *found = _Depthwise.apply(x, conv.weight, conv, norm)
    if not norm.training:
        found = running(norm)
    if excitation is None:
        h = _norm_act(h, norm, _code([act]), found)
    else:
        first, second = excitation.fc1, excitation.fc2
        layers = (first.weight, first.bias, second.weight, second.bias)
        h = _NormExcite.apply(h, norm.weight, norm.bias, *layers, found, _code([act]))
    return _norm_act(_Pointwise.apply(h, project.weight), last, NONE, residual=x if residual else None, keep=keep)


class FusedInvertedResidual(InvertedResidual):
    """MobileNet's."""

    def forward(self, x: Tensor) -> Tensor:
        if not _possible(self, x):
            return super().forward(x)
        return _inverted_residual(x, self.conv, self.use_res_connect, None)


class FusedMBConv(MBConv):
    """EfficientNet's, with excitation and stochastic depth."""

    def forward(self, x: Tensor) -> Tensor:
        if not _possible(self, x):
            return super().forward(x)
        keep, p = None, self.stochastic_depth.p
        if self.use_res_connect and self.training and p > 0:
            keep = F.dropout(torch.ones(len(x), device=x.device), p)
        return _inverted_residual(x, self.block, self.use_res_connect, keep)


class MeanPool(nn.AdaptiveAvgPool2d):
    """The mean of each map: one kernel instead of a general pooling."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3), keepdim=True)


def _code(act: list[nn.Module]) -> int:
    return ACTIVATIONS[type(act[0])] if act else NONE


def _stages(parts: nn.Sequential) -> list[Any]:
    """[(conv, norm, act) of an expansion,] (conv, norm, act), depthwise, excitation or None, (conv, norm)."""
    layers: list[Any] = list(parts)
    blocks = [tuple(m) for m in layers if type(m) is Conv2dNormActivation and len(m) == 3]
    excitation = next((m for m in layers if isinstance(m, SqueezeExcitation)), None)
    last = tuple(layers[-1]) if isinstance(layers[-1], Conv2dNormActivation) else tuple(layers[-2:])
    return [*blocks, excitation, last]


def _is_pointwise(conv: nn.Conv2d) -> bool:
    one = conv.kernel_size == conv.stride == (1, 1)
    return one and conv.padding == (0, 0) and conv.groups == 1 and conv.bias is None


def _norms(layer: nn.Module) -> list[nn.BatchNorm2d]:
    return [m for m in layer.modules() if isinstance(m, nn.BatchNorm2d)]


def _possible(layer: nn.Module, x: Tensor) -> bool:
    """On a GPU, and small enough for numbers of 32 bits. Norms all take their statistics from the batch; or none does,
    and then there is no gradient here."""
    if not (x.is_cuda or INTERPRETED) or x.numel() >= 2**28:
        return False
    learning = {norm.training for norm in _norms(layer)}
    return learning == {True} or (learning == {False} and not torch.is_grad_enabled())


def _known(layer: nn.Module) -> bool:
    """Made of what the kernels can do: channels in eights, BatchNorms with weights and running statistics."""
    norms = _norms(layer)
    usual = all(n.affine and n.track_running_stats and n.momentum and n.num_features % LANES == 0 for n in norms)
    convs = [m for m in layer.modules() if isinstance(m, nn.Conv2d)]
    return bool(norms) and usual and all(m.groups == 1 or depthwise.is_depthwise(m) for m in convs)


SWAPS: dict[type[nn.Module], type[nn.Module]] = {
    InvertedResidual: FusedInvertedResidual, MBConv: FusedMBConv, Conv2dNormActivation: FusedChain,
    BasicBlock: FusedBasicBlock, BasicConv2d: FusedBasicConv2d,
}  # fmt: skip


def use_fused_layers(model: nn.Module) -> None:
    """Let ``model``'s layers compute in the ways here, where there is one for them."""
    whole = [m for m in model.modules() if isinstance(m, InvertedResidual | MBConv | BasicBlock)]
    inside = {id(part) for block in whole for part in block.modules() if part is not block}
    for layer in model.modules():
        if id(layer) not in inside and _known(layer):
            if type(layer) in SWAPS:
                layer.__class__ = SWAPS[type(layer)]
            elif type(layer) is nn.Sequential and [type(m) for m in layer] == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU]:
                layer.__class__ = FusedChain
        if type(layer) is nn.AdaptiveAvgPool2d and layer.output_size in (1, (1, 1)):
            layer.__class__ = MeanPool
        elif depthwise.is_depthwise(layer):
            layer.weight.data = depthwise.channels_fastest(layer.weight.data)
