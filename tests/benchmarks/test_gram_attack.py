"""The attack on FedFoA's R on features where the truth is known."""

from __future__ import annotations

import pytest
import torch

from fedchoir.losses import feature_correlation
from gram_attack import attack, class_mix, last_row, leverage, mean_direction, membership, options


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_leverage_of_members_is_at_most_one_and_sums_to_n() -> None:
    z = normal(0, 30, 12)
    scores = leverage(feature_correlation(z), z)
    expected = torch.diagonal(z @ torch.linalg.inv(z.T @ z) @ z.T)
    torch.testing.assert_close(scores, expected)
    assert scores.max() <= 1 + 1e-9
    assert scores.sum().item() == pytest.approx(12)


def test_membership_shows_in_one_batch_and_fades_in_the_mean_of_many() -> None:
    batches = normal(1, 40, 60, 30)
    outside = normal(2, 500, 30)
    one = membership(feature_correlation(batches[0]), batches[0], outside)
    mean = torch.stack([feature_correlation(z) for z in batches]).mean(0)
    many = membership(mean, batches.flatten(0, 1), outside)
    assert one > 0.9
    assert abs(many - 0.5) < 0.06


def test_the_last_row_and_the_mean_direction_are_found() -> None:
    z = normal(3, 20, 6) + 5
    found = last_row(feature_correlation(z), z[:-1])
    torch.testing.assert_close(found * torch.sign(found @ z[-1]), z[-1], rtol=1e-5, atol=1e-5)
    direction = mean_direction(feature_correlation(z))
    assert (direction @ z.mean(0)).abs() / z.mean(0).norm() > 0.99


def test_a_mixture_of_classes_is_separated() -> None:
    centres = 4 * torch.eye(3, 5, dtype=torch.float64)
    labels = torch.tensor([0] * 50 + [1] * 30 + [2] * 20).repeat(5)
    z = centres[labels] + 0.3 * normal(4, 500, 5)
    known = [centres[c] + 0.3 * normal(5 + c, 400, 5) for c in range(3)]
    moments = torch.stack([k.T @ k / 400 for k in known])
    shares = class_mix(feature_correlation(z), 500, moments)
    torch.testing.assert_close(shares, torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), atol=0.02, rtol=0)


def test_the_whole_experiment_runs_on_embedded_data() -> None:
    numbers = dict(attack(options(["--model", "mlp@16", "--images", "120", "--batch", "40", "--dim", "8"])))
    assert float(numbers["Gram matrix: ‖RᵀR − ZᵀZ‖ / ‖ZᵀZ‖"]) < 1e-5
    assert float(numbers["all features of the batch but one known: error of the last, up to sign"]) < 0.05
    assert all(float(number) == float(number) for number in numbers.values())
