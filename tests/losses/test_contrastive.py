"""MOON against a loop, NT-Xent against lightly."""

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


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_nt_xent_is_lightlys(temperature):
    y1, y2 = torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    theirs = NTXentLoss(temperature=temperature)(y1, y2)
    torch.testing.assert_close(losses.nt_xent(y1, y2, temperature), theirs)


def test_nt_xent_falls_when_views_of_one_image_agree_and_images_differ():
    apart = torch.eye(4)
    assert losses.nt_xent(apart, apart) < losses.nt_xent(apart, apart.flip(0)) < losses.nt_xent(apart, -apart)
