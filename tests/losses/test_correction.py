"""The correction of gradients against a loop, and what it adds to a gradient."""

import pytest
import torch

from fedchoir import losses


def tensors(seed, *shapes):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def test_it_matches_the_loop():
    shapes = [(3, 2), (4,), ()]
    params, corrections = tensors(0, *shapes), tensors(1, *shapes)
    total = 0.0
    for w, c in zip(params, corrections, strict=True):
        for a, b in zip(w.flatten().tolist(), c.flatten().tolist(), strict=True):
            total += a * b
    assert losses.gradient_correction(params, corrections).item() == pytest.approx(total, rel=1e-12)


def test_its_gradient_is_the_correction():
    model = torch.nn.Linear(3, 2)
    corrections = [torch.full_like(p, 0.5) for p in model.parameters()]
    losses.gradient_correction(model.parameters(), corrections).backward()
    for p, c in zip(model.parameters(), corrections, strict=True):
        assert p.grad is not None
        assert torch.equal(p.grad, c)


def test_corrections_in_another_order_are_refused():
    params = tensors(0, (3, 2), (4,))
    with pytest.raises(ValueError, match=r"a correction has shape \(4,\), and its parameters have \(3, 2\)"):
        losses.gradient_correction(params, params[::-1])
    with pytest.raises(ValueError, match="no parameters to correct"):
        losses.gradient_correction([], [])
