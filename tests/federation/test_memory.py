"""Recomputed blocks keep less and change nothing."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

from fedchoir.core.activation_checkpointing import blocks, kept_bytes, limit_activations
from fedchoir.models import VisionModel, build


def step(model: VisionModel, images: torch.Tensor) -> tuple[list[torch.Tensor], int]:
    """Gradients of one step and the bytes that were kept for them."""
    kept: dict[int, int] = {}
    own = {p.data_ptr() for p in model.parameters()}

    def pack(t: torch.Tensor) -> torch.Tensor:
        if t.data_ptr() not in own:
            kept[t.data_ptr()] = t.numel() * t.element_size()
        return t

    torch.manual_seed(1)  # dropout and stochastic depth
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = model.train()(images).square().mean()
    loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None], sum(kept.values())


@pytest.mark.parametrize("name", ["mobilenet_v2@0.25", "efficientnet_b0@0.25", "resnet12@8", "googlenet@0.125"])
def test_same_numbers_and_less_memory(name: str) -> None:
    torch.manual_seed(0)
    plain = build(name, 10)
    limit_activation_memory = deepcopy(plain)
    images = torch.randn(6, 3, 32, 32)
    total = sum(kept_bytes(plain, 32).values())
    limit_activations(limit_activation_memory, 32, batch=6, budget=6 * total / 3)
    gradients, kept = step(plain, images)
    again, kept_again = step(limit_activation_memory, images)
    assert all(torch.equal(a, b) for a, b in zip(gradients, again, strict=True))
    assert plain.state_dict().keys() == limit_activation_memory.state_dict().keys()
    states = zip(plain.state_dict().values(), limit_activation_memory.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in states)
    assert kept_again < 0.7 * kept


def test_small_batches_are_not_recomputed() -> None:
    model = build("resnet10@8", 10)
    before = [type(block) for block in blocks(model.trunk)]
    limit_activations(model, 32, batch=4, budget=1e9)
    assert [type(block) for block in blocks(model.trunk)] == before


def test_a_copy_uses_its_own_weights() -> None:
    torch.manual_seed(0)
    model = build("resnet10@8", 10)
    limit_activations(model, 32, batch=64, budget=1.0)
    twin = deepcopy(model)
    with torch.no_grad():
        for p in twin.parameters():
            p.zero_()
    images = torch.randn(4, 3, 32, 32, requires_grad=True)
    assert twin.train()(images).abs().max() == 0
    assert model.train()(images).abs().max() > 0
