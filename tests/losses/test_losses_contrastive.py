"""MOON against a loop, NT-Xent against lightly, and FedProx and EWC against sums over every weight."""

import math

import numpy as np
import pytest
import torch
from lightly.loss import NTXentLoss

from fedchoir import losses


def cosine(x, y):
    return float(np.dot(x, y) / (np.linalg.norm(x) * np.linalg.norm(y)))


def tensors(seed, *shapes):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


@pytest.mark.parametrize("temperature", [0.5, 0.05])
def test_moon_matches_the_loop(temperature):
    h, h_global, h_previous = tensors(0, *3 * [(6, 4)])
    total = 0.0
    for x, g, p in zip(h.numpy(), h_global.numpy(), h_previous.numpy(), strict=True):
        near, far = (math.exp(cosine(x, y) / temperature) for y in (g, p))
        total -= math.log(near / (near + far))
    assert losses.moon(h, h_global, h_previous, temperature).item() == pytest.approx(total / 6, rel=1e-10)


def test_moon_defaults_and_its_pull():
    h, h_global, h_previous = tensors(1, *3 * [(6, 4)])
    assert losses.moon(h, h_global, h_previous).item() == losses.moon(h, h_global, h_previous, 0.5).item()
    assert losses.moon(h, h, h).item() == pytest.approx(math.log(2))
    assert losses.moon(h_global, h_global, h_previous) < losses.moon(h_previous, h_global, h_previous)


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


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_nt_xent_is_lightlys(temperature):
    y1, y2 = torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    theirs = NTXentLoss(temperature=temperature)(y1, y2)
    torch.testing.assert_close(losses.nt_xent(y1, y2, temperature), theirs)


def test_nt_xent_falls_when_views_of_one_image_agree_and_images_differ():
    apart = torch.eye(4)
    assert losses.nt_xent(apart, apart) < losses.nt_xent(apart, apart.flip(0)) < losses.nt_xent(apart, -apart)
