"""Label smoothing against its formula, and its optimum against that of CE + masked FNTD, found by gradient descent."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedchoir import losses


def minimum(loss, classes):
    """The probability of class 0 at the minimum of a loss of one sample's logits, in float64."""
    z = torch.zeros(1, classes, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([z], 1, 500, tolerance_grad=1e-12, tolerance_change=0, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        value = loss(z)
        value.backward()
        return value

    optimizer.step(closure)
    assert z.grad.abs().max() < 1e-8
    return z.detach().softmax(dim=1)[0, 0].item()


@pytest.mark.parametrize(
    ("confidence", "classes", "temperature"), [(0.86, 10, 3.0), (0.5, 10, 3.0), (0.99, 31, 3.0), (0.7, 4, 1.0)]
)
def test_label_smoothing_has_the_optimum_of_fntd(confidence, classes, temperature):
    label = torch.zeros(1, dtype=torch.int64)
    others = (1 - confidence) / (classes - 1)
    teacher = torch.tensor([[confidence] + [others] * (classes - 1)], dtype=torch.float64).log()
    capped = minimum(lambda z: cross_entropy(z, label) + losses.fntd(z, teacher, label, temperature), classes)
    assert losses.fntd_cap(confidence, classes, temperature) == pytest.approx(capped, abs=1e-7)
    epsilon = losses.matched_smoothing(confidence, classes, temperature)
    assert minimum(lambda z: losses.label_smoothing(z, label, epsilon), classes) == pytest.approx(capped, abs=1e-7)


def test_the_cap_without_the_factor_of_tau_squared():
    label, teacher = (
        torch.zeros(1, dtype=torch.int64),
        torch.tensor([[0.86] + [0.14 / 9] * 9], dtype=torch.float64).log(),
    )
    capped = minimum(
        lambda z: cross_entropy(z, label) + losses.fntd(z, teacher, label, 3.0, tau_squared=False), classes=10
    )
    assert losses.fntd_cap(0.86, 10, 3.0, tau_squared=False) == pytest.approx(capped, abs=1e-7)


def test_a_teacher_of_86_percent_caps_at_57_percent():
    assert losses.fntd_cap(0.86, 10, 3.0) == pytest.approx(0.57, abs=0.005)


def test_the_cap_is_the_root_of_the_two_gradients():
    """1 − p = τ (1 − q) s, each side by hand from the logits."""
    p = losses.fntd_cap(0.86, 10, 3.0)
    student, teacher = (math.log(9 * x / (1 - x)) for x in (p, 0.86))
    s, q = (math.exp(gap / 3) / (math.exp(gap / 3) + 9) for gap in (student, teacher))
    assert 1 - p == pytest.approx(3 * (1 - q) * s, rel=1e-12)


def test_the_loss_is_the_cross_entropy_to_smoothed_labels():
    z, y = np.random.default_rng(0).normal(size=(6, 5)), np.arange(6) % 5
    target = 0.7 * np.eye(5)[y] + 0.3 / 5
    log_p = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    expected = -(target * log_p).sum(axis=1).mean()
    value = losses.label_smoothing(torch.from_numpy(z), torch.from_numpy(y), 0.3)
    assert value.item() == pytest.approx(expected, rel=1e-12)


def test_no_smoothing_matches_a_preference_for_a_wrong_class():
    with pytest.raises(ValueError, match="prefers a wrong class"):
        losses.matched_smoothing(0.86, classes=2, temperature=3.0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        losses.fntd_cap(1.0, classes=10)
