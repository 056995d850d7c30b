"""Autograd functions of the fused layers: each computes its gradients with the kernels of this package."""

from typing import Any

import torch
from torch import Tensor, nn

from fedchoir.engines.local.fused import depthwise, squeeze_excite
from fedchoir.engines.local.fused.common import Norm, channels_last
from fedchoir.engines.local.fused.deferred_weight_grads import weight_gradients
from fedchoir.engines.local.fused.kernels.common import NONE, RELU
from fedchoir.engines.local.fused.norm import add_relu_gradient, gradient, image_sums, normalise

Statistics = tuple[Tensor, Tensor]
"""Mean and 1/deviation of each channel."""


class Pointwise(torch.autograd.Function):
    """A 1×1 convolution as a matrix product. The weight's gradient is accumulated in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        w = weight.flatten(1).to(x.dtype)
        ctx.save_for_backward(x, w, weight)
        return _maps(_rows(x) @ w.t(), x.shape)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, w, weight = ctx.saved_tensors
        d = _rows(channels_last(dy))
        dx = _maps(d @ w, x.shape) if ctx.needs_input_grad[0] else None

        def dw() -> tuple[Tensor]:
            low = d.is_cuda and d.dtype != torch.float32
            product = torch.mm(d.t(), _rows(x), out_dtype=torch.float32) if low else d.t() @ _rows(x)
            return (product[:, :, None, None],)

        return dx, *weight_gradients(dw, weight)


class NormAct(torch.autograd.Function):
    """``act(norm(x))``, scaled per image, plus ``residual``."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, image_scale: Tensor | None,
        statistics: Statistics, act: int,
    ) -> Tensor:  # fmt: skip
        norm = Norm(act, *statistics, weight, bias)
        ctx.save_for_backward(x, *norm.tensors(), image_scale)
        ctx.act = act
        return normalise(x, norm, image_scale=image_scale, residual=residual)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, *tensors, image_scale = ctx.saved_tensors
        dy = channels_last(dy)
        dx, dweight, dbias = gradient(dy, x, Norm(ctx.act, *tensors), image_scale=image_scale)
        return dx, dweight, dbias, dy if ctx.needs_input_grad[3] else None, None, None, None


class NormAddRelu(torch.autograd.Function):
    """``relu(norm(x) + residual)``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor, statistics: Statistics) -> Tensor:
        norm = Norm(RELU, *statistics, weight, bias)
        y = normalise(x, norm, residual=residual, add_first=True)
        ctx.save_for_backward(x, y, *norm.tensors())
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, y, *tensors = ctx.saved_tensors
        dresidual, dx, dweight, dbias = add_relu_gradient(channels_last(dy), y, x, Norm(RELU, *tensors))
        return dx, dweight, dbias, dresidual, None


class NormDepthwise(torch.autograd.Function):
    """``conv(act(norm(x)))`` and the statistics of its output."""

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
        ctx.set_materialize_grads(False)  # else each step would fill zeros for them
        return y, mean, rstd

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *none: Any) -> tuple[Tensor | None, ...]:
        x, a, filters, *tensors = ctx.saved_tensors
        dy = channels_last(dy)
        (dfilters,) = weight_gradients(lambda: (depthwise.weight_gradient(a, dy, ctx.conv),), filters)
        dh, dweight, dbias = depthwise.input_gradient(dy, filters, ctx.conv, x, Norm(ctx.act, *tensors))
        dx, _, _ = gradient(dh, x, Norm(NONE, *tensors), sums=(dweight, dbias))
        return dx, dweight, dbias, dfilters, None, None, None, None


class Depthwise(torch.autograd.Function):
    """``conv(x)`` and the statistics of its output, where no norm comes before."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, filters: Tensor, conv: nn.Conv2d, following: nn.BatchNorm2d
    ) -> tuple[Tensor, Tensor, Tensor]:
        y, mean, rstd = depthwise.convolve(x, filters, conv, following)
        ctx.save_for_backward(x, filters)
        ctx.conv = conv
        ctx.mark_non_differentiable(mean, rstd)
        ctx.set_materialize_grads(False)  # else each step would fill zeros for them
        return y, mean, rstd

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *none: Any) -> tuple[Tensor | None, ...]:
        x, filters = ctx.saved_tensors
        dy = channels_last(dy)
        ones, zeros = (torch.full(x.shape[1:2], value, device=x.device) for value in (1.0, 0.0))
        dx, _, _ = depthwise.input_gradient(dy, filters, ctx.conv, x, Norm(NONE, zeros, ones, ones, zeros))
        return dx, *weight_gradients(lambda: (depthwise.weight_gradient(x, dy, ctx.conv),), filters), None, None


class NormSqueezeExcite(torch.autograd.Function):
    """``act(norm(x))`` times the gates that two small layers compute from its channel means."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor,
        statistics: Statistics, act: int,
    ) -> Tensor:  # fmt: skip
        norm, ctx.act = Norm(act, *statistics, weight, bias), act
        mean = image_sums(x, norm)
        gate, hidden = squeeze_excite.gate(mean, w1, b1, w2, b2, x.dtype == torch.bfloat16)
        ctx.save_for_backward(x, mean, gate, hidden, w1, b1, w2, b2, *norm.tensors())
        return normalise(x, norm, gate=gate)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, gate, hidden, w1, b1, w2, b2, *tensors = ctx.saved_tensors
        norm, dy, bf16 = Norm(ctx.act, *tensors), channels_last(dy), x.dtype == torch.bfloat16
        dz = image_sums(x, norm, dy, gate)
        dpool, dhidden = squeeze_excite.pool_gradient(dz, hidden, x[0, 0].numel(), w1, w2, bf16)
        dlayers = weight_gradients(
            lambda: squeeze_excite.weight_gradients(dz, mean, hidden, dhidden, w1, w2, bf16), w1, b1, w2, b2
        )
        dx, dweight, dbias = gradient(dy, x, norm, gate=gate, dpool=dpool)
        return dx, dweight, dbias, *dlayers, None, None


def _rows(x: Tensor) -> Tensor:
    """N×C×H×W as a matrix of positions and channels."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])


def _maps(rows: Tensor, shape: torch.Size) -> Tensor:
    return rows.view(shape[0], *shape[2:], rows.shape[1]).permute(0, 3, 1, 2)
