"""Narrow networks inside a wide one: which channels of every weight of the wide network the narrow one has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from math import gcd

import torch
from torch import Tensor, nn

from fedchoir.models.base import Model
from fedchoir.models.normalisation import NORMALISATION
from fedchoir.utils.input_spec import InputSpec
from fedchoir.utils.rng import generator

State = Mapping[str, Tensor]
Index = tuple[Tensor, ...]
"""The place of a narrow tensor in a wide one: ``wide[index]`` has the narrow one's shape."""
Shift = Callable[[int], int]
"""The first channel of a layer's window, from the layer's full width."""


def window(full: int, part: int, shift: int = 0) -> Tensor:
    """``part`` of ``full`` channels: those from ``shift`` on, and from the first one again after the last; sorted.

    >>> window(6, 3), window(6, 3, 4)
    (tensor([0, 1, 2]), tensor([0, 4, 5]))
    """
    start = 0 if part == full else shift
    return ((torch.arange(part) + start) % full).sort().values


def slice_index(full: torch.Size, part: torch.Size, shift: Shift) -> Index:
    """The place of a narrow tensor: a window in every dimension in which it is narrower.

    >>> torch.arange(6).view(2, 3)[slice_index(torch.Size([2, 3]), torch.Size([1, 2]), lambda width: 1)]
    tensor([[4, 5]])
    """
    windows = [window(n, m, shift(n)) for n, m in zip(full, part, strict=True)]
    return tuple(w.view([-1 if d == k else 1 for d in range(len(full))]) for k, w in enumerate(windows))


def common_divisor(full: State, part: State) -> int:
    """The greatest common divisor of the full widths of all dimensions that are narrower in ``part``; 0 without any."""
    return gcd(*(n for name, t in part.items() for n, m in zip(full[name].shape, t.shape, strict=True) if n != m))


def is_narrower(full: State, part: State) -> bool:
    """Whether both have the same tensors, and no dimension of ``part`` is larger."""
    return full.keys() == part.keys() and all(
        t.dim() == full[name].dim() and all(m <= n for n, m in zip(full[name].shape, t.shape, strict=True))
        for name, t in part.items()
    )


@torch.no_grad()
def is_part(wide: Model, narrow: Model, shift: Shift, inputs: InputSpec) -> bool:
    """Whether the narrow network is the wide one without its other channels.

    With zeros in place of the others' weights both must then give the same logits. Normalisation is left out: over
    several channels it would differ. Where a layer stacks blocks (the gates of a GRU, concatenated features, queries
    and keys of a transformer), the first channels of all blocks are no contiguous window, and the logits differ.
    """
    large, small = (_without_normalisation(deepcopy(model)).double().eval() for model in (wide, narrow))
    state = {name: torch.zeros_like(t) for name, t in large.state_dict().items()}
    for name, t in small.state_dict().items():
        state[name][slice_index(state[name].shape, t.shape, shift)] = t
    large.load_state_dict(state)
    x, draw = inputs.example(4), generator(0, "slices")
    if inputs.modality == "text":
        x = torch.randint(1, max(inputs.vocabulary, 2), x.shape, generator=draw)
    else:
        x = torch.randn(x.shape, generator=draw).double()
    return torch.allclose(large(x), small(x), rtol=1e-6, atol=1e-9)


def _without_normalisation(model: nn.Module) -> nn.Module:
    """The model, whose normalisation layers now return their inputs."""
    for module in model.modules():
        if isinstance(module, NORMALISATION):
            module.forward = _unchanged  # type: ignore[method-assign]
    return model


def _unchanged(x: Tensor) -> Tensor:
    return x
