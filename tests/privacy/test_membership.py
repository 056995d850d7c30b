"""The membership attack finds members where there is something to find, and only there."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedchoir.privacy.membership import distilled, loss_attack, losses


def test_the_interval_covers_the_truth() -> None:
    """Losses of members are normal with mean −1, of others with mean 0: the AUC is Φ(1/√2) = 0.7602."""
    truth, covered = 0.76025, 0
    for seed in range(200):
        draw = torch.Generator().manual_seed(seed)
        found = loss_attack(torch.randn(60, generator=draw) - 1, torch.randn(60, generator=draw))
        covered += found.low <= truth <= found.high
    assert 180 <= covered <= 199  # 95 % of 200, within three standard deviations


def test_guessing_is_one_half() -> None:
    draw = torch.Generator().manual_seed(0)
    found = loss_attack(torch.randn(2000, generator=draw), torch.randn(2000, generator=draw))
    assert found.low < 0.5 < found.high
    assert found.high - found.low < 0.05


def test_a_model_that_memorised_is_found_out_and_so_is_its_copy() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(40, 20), torch.randint(0, 2, (40,))
    others, other_labels = torch.randn(40, 20), torch.randint(0, 2, (40,))

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))

    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert loss_attack(losses(model(x), y), losses(model(others), other_labels)).low > 0.8
    batches = torch.randn(20, 50, 20)
    student = distilled(network(), [(batch, model(batch).detach()) for batch in batches])
    copied = loss_attack(losses(student(x), y), losses(student(others), other_labels))
    assert copied.low > 0.55
    untrained = network()
    assert loss_attack(losses(untrained(x), y), losses(untrained(others), other_labels)).low < 0.55


def test_the_estimate_reads_well() -> None:
    assert str(loss_attack(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]))) == pytest.approx(
        "0.50 (95 %: 0.00 to 1.00)"
    )
