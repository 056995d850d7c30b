"""FD's regulariser against a loop."""

import math

import numpy as np
import pytest
import torch

from fedchoir import losses

LABELS = torch.tensor([0, 2, 1, 2, 0])


def drawn():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 5, 3, generator=generator, dtype=torch.float64)


def test_cross_entropy_to_the_class_target_matches_the_loop():
    z, targets = drawn()
    targets = targets[:3].softmax(dim=1)
    each = []
    for row, y in zip(z.tolist(), LABELS.tolist(), strict=True):
        log_total = math.log(sum(map(math.exp, row)))
        each.append(-sum(t * (v - log_total) for t, v in zip(targets[y].tolist(), row, strict=True)))
    assert losses.class_distillation(z, LABELS, targets).item() == pytest.approx(np.mean(each))
    present = torch.tensor([True, True, False])
    kept = sum(v for v, y in zip(each, LABELS.tolist(), strict=True) if present[y]) / 5
    assert losses.class_distillation(z, LABELS, targets, present).item() == pytest.approx(kept)


def test_squared_difference_of_logits_matches_numpy():
    z, targets = drawn()
    expected = ((z.numpy() - targets[:3].numpy()[LABELS]) ** 2).mean()
    assert losses.class_distillation(z, LABELS, targets[:3], outputs="logits").item() == pytest.approx(expected)


def test_the_target_itself_is_the_minimum():
    z, _ = drawn()
    for outputs, target in (("probabilities", z.softmax(1)), ("logits", z)):
        own = z.clone().requires_grad_()
        losses.class_distillation(own, torch.arange(5), target, outputs=outputs).backward()
        torch.testing.assert_close(own.grad, torch.zeros_like(own))


def test_unknown_outputs_are_refused():
    z, targets = drawn()
    with pytest.raises(ValueError, match="outputs is 'scores'; choose one of: probabilities, logits"):
        losses.class_distillation(z, LABELS, targets[:3], outputs="scores")
