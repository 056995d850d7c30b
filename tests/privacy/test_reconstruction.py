"""Reconstruction finds samples in the updates that hold them."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedchoir.privacy.reconstruction import best_psnr, by_inversion, from_first_layer

SHAPE = torch.Size((1, 6, 6))


def step(model: nn.Module, x: Tensor, y: Tensor, lr: float = 0.1) -> dict[str, Tensor]:
    """Weights before minus weights after one step of SGD."""
    after = copy.deepcopy(model)
    F.cross_entropy(after(x), y).backward()
    with torch.no_grad():
        return {name: lr * p.grad for name, p in after.named_parameters() if p.grad is not None}


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 64), nn.ReLU(), nn.Linear(64, 3))


def test_the_first_layer_holds_a_single_sample() -> None:
    model, x = perceptron(), torch.rand(1, *SHAPE, generator=torch.Generator().manual_seed(1))
    found = from_first_layer(model, step(model, x, torch.tensor([2])), SHAPE)
    assert best_psnr(found, x) > 60


def test_imprint_weights_make_the_first_layer_hold_every_sample() -> None:
    """Neurons with one direction and rising thresholds (Fowl et al., 2022): neighbours differ by one sample."""
    model, draw = perceptron(), torch.Generator().manual_seed(2)
    x = torch.rand(8, *SHAPE, generator=draw)
    with torch.no_grad():
        model[1].weight.fill_(1 / 36)
        model[1].bias.copy_(-torch.linspace(0.3, 0.7, 64))
        model[3].weight.copy_(torch.ones(3, 64) * torch.tensor([[1.0], [-1.0], [0.5]]))
    found = from_first_layer(model, step(model, x, torch.arange(8) % 3), SHAPE)
    private = [best_psnr(found, sample[None]) for sample in x]
    assert sum(value > 40 for value in private) >= 4


def test_inversion_finds_a_sample_in_the_gradient_of_a_convolution() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(432, 3))
    x, y = torch.rand(1, *SHAPE, generator=torch.Generator().manual_seed(3)), torch.tensor([1])
    update = step(model, x, y)
    assert len(from_first_layer(model, update, SHAPE)) == 0
    draw = torch.Generator().manual_seed(0)
    found = by_inversion(model, update, y, SHAPE, steps=400, generator=draw)
    start = by_inversion(model, update, y, SHAPE, steps=0, generator=draw)
    assert best_psnr(found, x) > best_psnr(start, x) + 8


def test_psnr() -> None:
    private = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert best_psnr(torch.tensor([[0.0, 1.0]]), private) >= 100
    assert best_psnr(torch.tensor([[0.1, 1.1]]), private) == pytest.approx(20.0, abs=1e-4)
    assert best_psnr(torch.empty(0, 2), private) == -math.inf
