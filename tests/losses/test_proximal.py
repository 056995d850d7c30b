"""The penalties of FedProx and EWC against loops in NumPy."""

import pytest
import torch

from fedchoir import losses


def tensors(seed, *shapes):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def test_proximal_and_ewc_match_the_loops():
    shapes = [(3, 2), (4,), ()]
    params, reference, fisher = (tensors(seed, *shapes) for seed in (2, 3, 4))
    squares = weighted = 0.0
    for w, old, f in zip(params, reference, fisher, strict=True):
        for a, b, c in zip(w.flatten().tolist(), old.flatten().tolist(), f.flatten().tolist(), strict=True):
            squares += (a - b) ** 2
            weighted += c * (a - b) ** 2
    assert losses.proximal(params, reference).item() == pytest.approx(squares / 2, rel=1e-12)
    assert losses.ewc(params, reference, fisher).item() == pytest.approx(weighted / 2, rel=1e-12)


def test_penalties_pull_back_along_the_difference():
    (w,), (old,), (fisher,) = (tensors(seed, (5,)) for seed in (5, 6, 7))
    w.requires_grad_()
    (gradient,) = torch.autograd.grad(losses.proximal([w], [old]), w)
    torch.testing.assert_close(gradient, w.detach() - old)
    (gradient,) = torch.autograd.grad(losses.ewc([w], [old], [fisher]), w)
    torch.testing.assert_close(gradient, fisher * (w.detach() - old))


def test_penalties_take_a_models_parameters():
    model, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    assert losses.proximal(model.parameters(), model.parameters()).item() == 0
    assert losses.proximal(model.parameters(), other.parameters()).item() > 0


def test_penalties_refuse_lists_that_do_not_match():
    (w,) = tensors(8, (2,))
    with pytest.raises(ValueError, match="zip"):
        losses.proximal([w, w], [w])
    with pytest.raises(ValueError, match=r"^no parameters to penalise"):
        losses.proximal([], [])
