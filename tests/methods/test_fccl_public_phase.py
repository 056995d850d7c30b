"""The public phase of FCCL+: payloads and eq. 6."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.helpers import equal
from tests.methods.plain_models import PLAIN, Make, after

from fedchoir.core.training import Batch
from fedchoir.losses import fccm, fisl, instance_similarity


@pytest.mark.parametrize(
    ("switches", "numbers"),
    [
        ({}, lambda b: b * 4 + b * (b - 1)),
        ({"use_fisl": False}, lambda b: b * 4),
        ({"use_fccm": False}, lambda b: b * (b - 1)),
        ({"use_fccm": False, "use_fisl": False}, lambda b: 0),
    ],
)
def test_a_batch_costs_what_the_modules_compare(
    switches: dict[str, Any], numbers: Callable[[int], int], harness: Make
) -> None:
    """Tables 2 and 4: |B|·C + |B|·(|B| − 1) numbers a client and batch up, and as many down."""
    (event,) = harness("fccl+", PLAIN, **switches).run_rounds()
    expected = 3 * 4 * sum(numbers(b) for b in (16, 16, 8))
    assert event["bytes_up"] == event["bytes_down"] == expected


def test_the_public_loss_is_equation_6(harness: Make) -> None:
    for switches in ({}, {"use_fisl": False}, {"use_fccm": False}):
        s = harness("fccl+", PLAIN, omega=2.0, off_diagonal=0.1, **switches)
        client = s.clients[0]
        h, z = client.features_and_logits(client.public_samples(s.batch()))
        g = torch.Generator().manual_seed(0)
        targets = {"logits": torch.randn(16, 4, generator=g), "similarity": torch.randn(16, 15, generator=g)}
        parts = {"use_fccm": fccm(z, targets["logits"], 0.1)}
        parts["use_fisl"] = 2 * fisl(instance_similarity(h, 0.02), targets["similarity"])
        expected = sum(part for name, part in parts.items() if switches.get(name, True))
        value = s.method.public_loss(client, Batch(client.public_samples(s.batch()), torch.empty(0), targets))
        torch.testing.assert_close(value, expected)


def test_fisl_off_is_a_weight_of_nothing(harness: Make) -> None:
    off, nothing, on = (after(harness, **change) for change in ({"use_fisl": False}, {"omega": 0.0}, {}))
    assert equal(off, nothing)
    assert not equal(off, on)
