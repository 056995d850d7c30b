"""A way around a fault of oneDNN, the library that computes PyTorch's convolutions on a CPU.

The gradient of the weights of a 1×1 convolution with a stride, fewer than 16 input channels and channels-last inputs
writes past its memory: with two threads or more the process dies, or other tensors change silently. It is in torch 2.11
(oneDNN 3.10) on CPUs with AVX-512, and reported as https://github.com/uxlfoundation/oneDNN/issues/6035. With one thread
the fault is absent, and torch's own convolution keeps the numbers of earlier runs to the last digit.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHANNELS = 16  # of a block in oneDNN; with as many input channels the fault is absent


class StridedPointwise(nn.Conv2d):
    """A 1×1 convolution that, on a CPU with several threads, first takes the pixels that its stride selects.

    The outputs are the same but for rounding."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if input.device.type != "cpu" or torch.get_num_threads() == 1:
            return super()._conv_forward(input, weight, bias)
        rows, columns = self.stride
        return F.conv2d(input[..., ::rows, ::columns], weight, bias)


def avoid_faulty_convolutions(model: nn.Module) -> None:
    """Let every layer that the fault concerns take the way around it from now on."""
    for layer in model.modules():
        if type(layer) is nn.Conv2d and _is_concerned(layer):
            layer.__class__ = StridedPointwise  # the same object: others may refer to it, and it may have hooks


def _is_concerned(conv: nn.Conv2d) -> bool:
    strided = conv.kernel_size == (1, 1) and conv.stride != (1, 1) and conv.padding in ((0, 0), "valid")
    return strided and conv.groups == 1 and conv.in_channels < CHANNELS
