"""Differential privacy: ε against the exact formula, and models without BatchNorm."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedchoir.models import build
from fedchoir.privacy.dp import check_per_sample_gradients, epsilon, without_batchnorm
from fedchoir.utils.errors import UsageError
from fedchoir.utils.input_spec import InputSpec


def test_one_full_gaussian_release_against_the_exact_formula() -> None:
    """δ(ε) of a Gaussian mechanism (Balle and Wang, 2018, Theorem 8): Φ(1/2σ − εσ) − e^ε Φ(−1/2σ − εσ)."""
    noise, delta = 2.0, 1e-5
    found = epsilon(noise, 1.0, 1, delta)

    def phi(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    def exact(e: float) -> float:
        return phi(0.5 / noise - e * noise) - math.exp(e) * phi(-0.5 / noise - e * noise)

    assert exact(found) <= delta * 1.001
    assert exact(found - 0.01) > delta
    # releases of σ compose to one of σ/√n
    assert epsilon(5.0, 1.0, 40, delta) == pytest.approx(epsilon(5.0 / math.sqrt(40), 1.0, 1, delta), rel=1e-2)


def test_sampling_less_and_noise_cost_less_and_steps_cost_more() -> None:
    base = epsilon(1.0, 0.1, 100, 1e-5)
    assert epsilon(2.0, 0.1, 100, 1e-5) < base
    assert epsilon(1.0, 0.05, 100, 1e-5) < base
    assert epsilon(1.0, 0.1, 200, 1e-5) > base
    assert epsilon(1.0, 0.1, 100, 1e-6) > base
    assert epsilon(1.0, 0.1, 0, 1e-5) == 0


@pytest.mark.parametrize("name", ["resnet10@4", "mobilenet_v2@0.25", "googlenet@0.125"])
def test_batchnorm_is_replaced_and_samples_no_longer_mix(name: str) -> None:
    torch.manual_seed(0)
    model = build(name, 4, InputSpec.image(32))
    without_batchnorm(model)
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
    assert any(isinstance(m, nn.GroupNorm) for m in model.modules())
    assert not any(getattr(m, "inplace", False) for m in model.modules())
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    images = torch.randn(4, 3, 32, 32)
    model.train()
    assert model(images[:1]).shape == (1, 4)
    torch.testing.assert_close(model(images)[:2], model(images[:2]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "right"), [("resnet10@4", True), ("simple_cnn@4", True), ("timm:convnext_atto", False)]
)
def test_wrong_per_sample_gradients_are_refused(name: str, right: bool) -> None:
    model = build(name, 4, InputSpec.image(32))
    without_batchnorm(model)
    model.to(memory_format=torch.contiguous_format)
    images = torch.randn(2, 3, 32, 32)
    if right:
        check_per_sample_gradients(model, images)
        return
    with pytest.raises(UsageError, match=r"the per-sample gradients of .* are wrong"):
        check_per_sample_gradients(model, images)
