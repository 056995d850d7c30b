"""Strided 1×1 convolutions with few channels: no memory is overwritten, and the numbers are those of a convolution."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from fedchoir.models import build
from fedchoir.models.strided_pointwise import StridedPointwise, avoid_faulty_convolutions

TRAINED = """
import sys
import torch
from torch.nn.functional import cross_entropy
from fedchoir.models import build
torch.set_num_threads(2)
for name in sys.argv[1].split():
    model = build(name, 10).to(memory_format=torch.channels_last)
    for size in (5, 11, 65, 137):
        for _ in range(3):
            images = torch.randn(size, 3, 16, 16).to(memory_format=torch.channels_last)
            cross_entropy(model(images), torch.randint(10, (size,))).backward()
            kept = [torch.randn(1000 * k + 7) for k in range(20)]
"""


RESNETS = "resnet12@12 resnet10@8 resnet12_gn@4 resnet20@8"
OTHERS = "alexnet@8 cnn2@4 efficientnet_b0@0.25 googlenet@0.125 mobilenet_v2@0.25 simple_cnn@4 vgg9@4"


@pytest.mark.slow
@pytest.mark.parametrize("names", [RESNETS, OTHERS])
def test_training_with_two_threads_leaves_the_heap_intact(names: str) -> None:
    """With torch's own layer the process of the ResNets dies of a damaged heap on CPUs with AVX-512. The others do not
    have the layer; all other tests run with one thread."""
    done = subprocess.run([sys.executable, "-c", TRAINED, names], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets the number of threads for a test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def gradients(conv: nn.Conv2d, x: Tensor) -> list[Tensor]:
    conv, x = deepcopy(conv), x.clone().requires_grad_()
    y = conv(x)
    y.square().sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in conv.parameters())]  # type: ignore[list-item]


@pytest.mark.parametrize("stride", [2, (1, 3)])
@pytest.mark.parametrize("bias", [False, True])
def test_outputs_and_gradients_are_those_of_the_convolution(
    stride: int | tuple[int, int], bias: bool, threads: Callable[[int], None]
) -> None:
    threads(2)
    conv = nn.Conv2d(5, 7, 1, stride=stride, bias=bias).double()
    replaced = nn.Sequential(deepcopy(conv))
    avoid_faulty_convolutions(replaced)
    assert type(replaced[0]) is StridedPointwise
    x = torch.randn(3, 5, 9, 8, dtype=torch.float64)
    for a, b in zip(gradients(replaced[0], x), gradients(conv, x), strict=True):
        torch.testing.assert_close(a, b)


def test_with_one_thread_the_numbers_are_those_of_torch_bit_by_bit(threads: Callable[[int], None]) -> None:
    """Also that an image's output does not depend on the others in its batch, which the pixels selected first lose."""
    threads(1)
    conv = nn.Conv2d(4, 8, 1, stride=2, bias=False).to(memory_format=torch.channels_last)
    replaced = nn.Sequential(deepcopy(conv))
    avoid_faulty_convolutions(replaced)
    x = torch.randn(48, 4, 16, 16).to(memory_format=torch.channels_last)
    assert all(map(torch.equal, gradients(replaced[0], x), gradients(conv, x)))
    with torch.no_grad():
        assert torch.equal(conv(x), torch.cat([replaced(part) for part in x.split(20)]))


def test_only_layers_that_the_fault_concerns_change() -> None:
    others = [
        nn.Conv2d(16, 8, 1, stride=2), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, stride=2, padding=1),
        nn.Conv2d(8, 8, 1, stride=2, padding=1), nn.Conv2d(8, 8, 1, stride=2, groups=2), nn.Conv1d(8, 8, 1, stride=2),
    ]  # fmt: skip
    model = nn.Sequential(nn.Conv2d(8, 8, 1, stride=2, padding="valid"), *others)
    kinds = [type(layer) for layer in others]
    avoid_faulty_convolutions(model)
    assert [type(layer) for layer in model] == [StridedPointwise, *kinds]


def test_built_models_have_none_left() -> None:
    changed = {name: sum(type(m) is StridedPointwise for m in build(name, 10).modules()) for name in NARROW}
    assert changed == NARROW
    assert list(build("resnet12@8", 10).state_dict()) == list(build("resnet12@16", 10).state_dict())


NARROW = {"resnet12@8": 1, "resnet10@4": 2, "resnet12@16": 0, "resnet10": 0}
"""Narrow ResNets by how many of their shortcuts have fewer than 16 input channels."""
