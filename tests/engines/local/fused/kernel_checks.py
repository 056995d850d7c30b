"""Checks of the kernels against torch in float64. On a GPU: `pytest -m gpu`. On a CPU, interpreted and slow:

TRITON_INTERPRET=1 python tests/engines/local/fused/kernel_checks.py
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
import torch.nn.functional as F
import triton.runtime.interpreter as interpreter
from torch import Tensor, nn
from torchvision.models.efficientnet import MBConv, MBConvConfig
from torchvision.models.googlenet import BasicConv2d
from torchvision.models.mobilenetv2 import InvertedResidual
from torchvision.models.resnet import BasicBlock, Bottleneck

from fedchoir.engines.local.fused import depthwise, norm, squeeze_excite
from fedchoir.engines.local.fused.common import Norm, _counters
from fedchoir.engines.local.fused.deferred_weight_grads import deferred_weight_gradients
from fedchoir.engines.local.fused.kernels.common import NONE, RELU, RELU6, SILU
from fedchoir.engines.local.fused.layers import use_fused_layers
from fedchoir.models.base import conv_norm_relu

ACTIVATIONS: dict[int, Callable[[Tensor], Tensor]] = {NONE: lambda t: t, RELU: F.relu, RELU6: F.relu6, SILU: F.silu}
# images, channels, side, activation, filter size, stride; sides that the tile width does and does not divide
SHAPES = [
    (3, 40, 6, RELU6, 3, 1),
    (2, 24, 7, SILU, 5, 2),
    (2, 32, 8, RELU, 3, 2),
    (4, 48, 2, NONE, 5, 1),
    (2, 16, 8, SILU, 5, 1),
]
SQUEEZED = [(5, 40, 10), (33, 96, 4), (3, 24, 48)]  # images, channels, squeezed channels


def close(found: Tensor, wanted: Tensor, error: float = 2e-5) -> None:
    """By the norm of the difference: elements that happen to be near zero do not matter."""
    difference = torch.linalg.vector_norm(found.double() - wanted.double()) / torch.linalg.vector_norm(wanted.double())
    assert difference < error, f"relative difference {difference:.1e}"


def images(*shape: int, device: str) -> Tensor:
    return torch.randn(shape, device=device).contiguous(memory_format=torch.channels_last)


def batch_norm(channels: int, device: str) -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(channels).to(device)
    nn.init.normal_(layer.weight, 1, 0.3), nn.init.normal_(layer.bias, 0, 0.5)
    assert layer.running_mean is not None
    layer.running_mean.normal_()
    return layer


def check_norm(shape: tuple[int, int, int, int, int, int], device: str) -> None:
    """Statistics, the forward pass with gate, scale and residual, and each of its gradients."""
    n, c, side, act, _, _ = shape
    torch.manual_seed(0)
    x, layer = 2 * images(n, c, side, side, device=device) + 1, batch_norm(c, device)
    exact = copy.deepcopy(layer).double()
    stats = Norm(act, *norm.moments(x, layer), layer.weight.detach(), layer.bias.detach())
    y = ACTIVATIONS[act](exact(x.double())).detach()
    for mine, theirs in zip(layer.buffers(), exact.buffers(), strict=True):
        close(mine, theirs)
    scale, gate, dpool = (torch.rand(n, *more, device=device) for more in ((), (c,), (c,)))
    residual, dy = images(n, c, side, side, device=device), images(n, c, side, side, device=device)
    per_image, per_map = scale[:, None, None, None], gate[:, :, None, None]
    close(norm.normalise(x, stats), y)
    close(norm.normalise(x, stats, image_scale=scale, residual=residual), y * per_image + residual)
    close(norm.normalise(x, stats, gate=gate), y * per_map)
    close(norm.image_sums(x, stats), y.mean((2, 3)))
    close(norm.image_sums(x, stats, dy, gate), (y * dy).sum((2, 3)) * gate * (1 - gate))
    for given, d in (
        ({}, dy.double()),
        ({"image_scale": scale}, dy.double() * per_image),
        ({"gate": gate, "dpool": dpool}, dy.double() * per_map + dpool[:, :, None, None]),
    ):
        inputs = [t.detach().double().requires_grad_() for t in (x, layer.weight, layer.bias)]
        out = ACTIVATIONS[act](F.batch_norm(inputs[0], None, None, *inputs[1:], True, 0.0, layer.eps))
        for mine, theirs in zip(norm.gradient(dy, x, stats, **given), torch.autograd.grad(out, inputs, d), strict=True):
            close(mine, theirs)


def check_depthwise(shape: tuple[int, int, int, int, int, int], device: str) -> None:
    """The convolution and its statistics, the gradient of its filters, and that of its input through the activation."""
    n, c, side, act, size, stride = shape
    torch.manual_seed(1)
    conv = nn.Conv2d(c, c, size, stride, size // 2, groups=c, bias=False).to(device)
    x, before, after = images(n, c, side, side, device=device), batch_norm(c, device), batch_norm(c, device)
    exact = copy.deepcopy(after).double()
    stats = Norm(act, *norm.moments(x, before), before.weight.detach(), before.bias.detach())
    a = norm.normalise(x, stats)
    y, mean, rstd = depthwise.convolve(a, conv.weight.detach(), conv, after)
    options = (None, stride, size // 2, 1, c)
    wanted = F.conv2d(a.double(), conv.weight.detach().double(), *options)
    exact(wanted)
    close(y, wanted)
    close(mean, wanted.mean((0, 2, 3)))
    close(rstd, (wanted.var((0, 2, 3), unbiased=False) + after.eps).rsqrt(), 1e-4)
    for mine, theirs in zip(after.buffers(), exact.buffers(), strict=True):
        close(mine, theirs)
    dy = images(*y.shape, device=device)
    unit = F.batch_norm(x.double(), None, None, None, None, True, 0.0, before.eps)
    inner = unit * before.weight.detach()[:, None, None] + before.bias.detach()[:, None, None]
    inputs = (inner.requires_grad_(), conv.weight.detach().double().requires_grad_())
    out = F.conv2d(ACTIVATIONS[act](inputs[0]), inputs[1], *options)
    dinner, dfilters = torch.autograd.grad(out, inputs, dy.double())
    close(depthwise.weight_gradient(a, dy, conv), dfilters)
    dh, dweight, dbias = depthwise.input_gradient(dy, conv.weight.detach(), conv, x, stats)
    close(dh, dinner)
    close(dweight, (dinner * unit).sum((0, 2, 3)))
    close(dbias, dinner.sum((0, 2, 3)))


def check_squeeze_excite(shape: tuple[int, int, int], device: str) -> None:
    n, c, squeezed = shape
    torch.manual_seed(2)
    first, second = nn.Conv2d(c, squeezed, 1).to(device), nn.Conv2d(squeezed, c, 1).to(device)
    layers = [t.detach() for t in (first.weight, first.bias, second.weight, second.bias)]  # type: ignore[union-attr]
    mean, dz = torch.randn(n, c, device=device), torch.randn(n, c, device=device)
    gate, hidden = squeeze_excite.gate(mean, *layers, bf16=False)
    exact = [t.double().requires_grad_() for t in (mean, *layers)]
    z = F.linear(F.silu(F.linear(exact[0], exact[1].flatten(1), exact[2])), exact[3].flatten(1), exact[4])
    close(gate, z.sigmoid())
    dmean, *rest = torch.autograd.grad(z, exact, dz.double())
    w1, w2 = layers[0], layers[2]
    dpool, dhidden = squeeze_excite.pool_gradient(dz, hidden, 4, w1, w2, bf16=False)
    found = squeeze_excite.weight_gradients(dz, mean, hidden, dhidden, w1, w2, bf16=False)
    for mine, theirs in zip((dpool, *found), (dmean / 4, *rest), strict=True):
        close(mine, theirs)


def blocks() -> list[nn.Module]:
    """Blocks of MobileNet and EfficientNet, with and without expansion, residual and stride; ResNet; GoogLeNet."""
    mobile = [InvertedResidual(16, 16, 1, 6), InvertedResidual(16, 24, 2, 6), InvertedResidual(16, 8, 1, 1)]
    settings = [MBConvConfig(6, 5, 1, 16, 16, 1), MBConvConfig(6, 3, 2, 16, 24, 1), MBConvConfig(1, 3, 1, 16, 16, 1)]

    def downsample(outputs: int, stride: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(16, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    others = [
        BasicBlock(16, 16),
        BasicBlock(16, 24, 2, downsample(24, 2)),
        Bottleneck(16, 8, 2, downsample(32, 2)),
        Bottleneck(16, 8, 1, downsample(32, 1)),
        Bottleneck(16, 4, base_width=128),
        BasicConv2d(16, 8, kernel_size=1),
        conv_norm_relu(16, 8),
    ]
    return [*mobile, *(MBConv(setting, 0.0, nn.BatchNorm2d) for setting in settings), *others]


def check_block(block: nn.Module, device: str) -> None:
    """A block: output, gradients of input and weights, running statistics; with frozen statistics; in eval mode."""
    torch.manual_seed(3)
    plain = nn.Sequential(block).to(device)
    fused = copy.deepcopy(plain)
    use_fused_layers(fused)
    assert type(fused[0]) is not type(block)
    plain.double()
    x, dy = images(5, 16, 6, 6, device=device), None
    found = []
    for model, inputs in ((fused, x.clone()), (plain, x.double())):
        inputs.requires_grad_()
        y = model(inputs)
        dy = torch.randn_like(y) if dy is None else dy
        y.backward(dy.to(y.dtype))
        gradients = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])  # some are noise
        found.append([y, inputs.grad, gradients, *model.buffers()])
    for mine, theirs in zip(*found, strict=True):
        close(mine, theirs, 1e-4)
    frozen = [b.clone() for b in fused.buffers()]
    for model in (fused, plain):
        for m in model.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.track_running_stats = False
    close(fused(x), plain(x.double()), 1e-4)
    assert all(torch.equal(a, b) for a, b in zip(frozen, fused.buffers(), strict=True))
    fused.eval(), plain.eval()
    close(fused(x), plain(x.double()), 1e-4)
    with torch.no_grad():
        close(fused(x), plain(x.double()), 1e-4)


def check_deferred(block: nn.Module, device: str) -> None:
    """Deferred weight gradients equal immediate ones, also if a loss runs the model several times."""
    torch.manual_seed(4)
    model = nn.Sequential(copy.deepcopy(block)).to(device)
    use_fused_layers(model)
    views = [images(5, 16, 6, 6, device=device) for _ in range(3)]
    for inputs in (views[:1], views):  # three passes have more layers than the queue holds
        found, deferred = [], []
        for context in (nullcontext(), deferred_weight_gradients(torch.device(device))):
            model.zero_grad()
            loss = torch.stack([model(x) for x in inputs]).prod(0).square().mean()
            with context:
                loss.backward()
                deferred.append(any(p.grad is None for p in model.parameters()))
            found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))  # some are noise
        assert deferred == [False, True] or inputs is views
        close(*found, 1e-5)


CHECKS: dict[str, Callable[[str], None]] = {
    **{f"norm {shape}": partial(check_norm, shape) for shape in SHAPES},
    **{f"depthwise {shape}": partial(check_depthwise, shape) for shape in SHAPES},
    **{f"squeeze-excite {shape}": partial(check_squeeze_excite, shape) for shape in SQUEEZED},
    **{f"block {k} {type(block).__name__}": partial(check_block, block) for k, block in enumerate(blocks())},
    **{f"deferred {k} {type(block).__name__}": partial(check_deferred, block) for k, block in enumerate(blocks()[:6])},
}


def patch_interpreter() -> None:
    """Triton's interpreter needs integers as loop counters; NumPy 2 no longer converts arrays of one element."""
    before = interpreter._patch_lang_tensor

    def patched(tensor: type, scope: interpreter._LangPatchScope) -> None:
        before(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


if __name__ == "__main__":
    patch_interpreter()
    for check in CHECKS.values():
        check("cpu")
    assert not _counters(torch.device("cpu")).any()  # all streams
    print(len(CHECKS), "checks", file=sys.stdout)
