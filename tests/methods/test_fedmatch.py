"""FedMatch: helpers and their consistency loss against NumPy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.helpers import equal
from tests.methods.public_checks import divergence, drawn, loss_on, predictions, softmax

Make = Callable[..., FederationHarness]


def test_helpers_are_the_nearest_and_count_where_they_are_confident(harness: Make) -> None:
    s = harness("fedmatch", helpers=1, confidence=0.75)
    aggregated = drawn(s)
    p = {k: softmax(v["logits"].double().numpy()) for k, v in aggregated.items()}
    received = s.method.pool_of_helpers(aggregated)
    own = predictions(s)
    for i in range(3):
        helper = min((k for k in range(3) if k != i), key=lambda k: ((p[k] - p[i]) ** 2).sum())
        counted = p[helper].max(axis=1) >= 0.75
        assert 0 < counted.sum() < 16
        expected = (divergence(p[helper], own[i]) * counted).mean()
        assert loss_on(s, i, received[i]) == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_more_helpers_than_clients_are_all_the_others(harness: Make) -> None:
    s = harness("fedmatch", helpers=9, confidence=0.0)
    aggregated = drawn(s)
    received = s.method.pool_of_helpers(aggregated)
    others = (aggregated[1]["logits"].softmax(1) + aggregated[2]["logits"].softmax(1)) / 2
    torch.testing.assert_close(received[0]["pool"], others)
    alone = s.method.pool_of_helpers({1: aggregated[1]})
    assert not any(payload[name].any() for payload in alone.values() for name in payload)


def test_without_a_confident_helper_nothing_is_learned(harness: Make) -> None:
    """The public phase then moves BatchNorm's statistics alone; these models have none."""
    models = ("simple_cnn@4", "mlp", "simple_cnn@6")
    quiet, alone = harness("fedmatch", models, confidence=1.0), harness("solo", models)
    quiet.run_rounds(), alone.run_rounds()
    assert equal(quiet.weights(), alone.weights())
