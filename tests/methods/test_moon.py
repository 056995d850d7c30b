"""MOON: its two reference models."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.helpers import equal
from tests.methods.one_client import features

from fedchoir.core.training import Batch

CNN = ("simple_cnn@4",)
Make = Callable[..., FederationHarness]


def test_moon_compares_with_the_global_and_the_clients_own_last_model(
    harness: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = harness("moon", CNN, local_batch=64)  # one batch holds all private images
    s.run_rounds()
    previous = [features(c) for c in s.clients]
    seen: dict[int, Batch] = {}
    loss = type(s.method).local_loss
    monkeypatch.setattr(type(s.method), "local_loss", lambda m, c, b: (seen.setdefault(c.index, b), loss(m, c, b))[1])
    merged = s.method.global_weights()
    s.run_rounds()
    for client in s.clients:
        client.model.load_state_dict(merged)
        batch = seen[client.index]
        order = [
            int((batch["h_global"][i] - torch.from_numpy(features(client))).abs().sum(1).argmin()) for i in range(48)
        ]
        assert sorted(order) == list(range(48))
        np.testing.assert_allclose(batch["h_global"], features(client)[order], atol=1e-5)
        np.testing.assert_allclose(batch["h_previous"], previous[client.index][order], atol=1e-5)


def test_moon_starts_with_cross_entropy_alone(harness: Make) -> None:
    one, two = harness("moon"), harness("fedavg")
    assert one.run_rounds()[0]["losses"] == two.run_rounds()[0]["losses"]
    assert equal(one.weights(), two.weights())
