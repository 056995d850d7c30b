"""The copy of the global model beside a client's own: it is averaged as in FedAvg, and the own model stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.federation_harness import FederationHarness
from tests.helpers import equal

Make = Callable[..., FederationHarness]
MLP = ("mlp@16",)  # its weights have one memory layout wherever they are


def copies(s: FederationHarness) -> list[dict]:
    return [client.modules["global_model"].state_dict() for client in s.clients]


@pytest.mark.parametrize("method", ["ditto", "apfl"])
def test_the_global_model_is_that_of_fedavg(method: str, harness: Make) -> None:
    s, plain = harness(method, MLP), harness("fedavg", MLP)
    for _ in range(2):
        s.run_rounds(), plain.run_rounds()
        assert equal(copies(s), plain.weights())
        assert equal(
            {n.removeprefix("global_model/"): t for n, t in s.method.server.items()}, plain.method.global_weights()
        )
    assert not equal(s.weights(), plain.weights())


@pytest.mark.parametrize("method", ["ditto", "apfl"])
def test_both_start_from_the_same_weights(method: str, harness: Make) -> None:
    s = harness(method, ("resnet10@2",))
    assert equal(copies(s), s.weights())
    assert equal(s.weights()[1:], s.weights()[:-1])


@pytest.mark.parametrize("method", ["ditto", "apfl"])
def test_pretraining_trains_both(method: str, harness: Make) -> None:
    s, plain = harness(method, MLP, pretrain_epochs=1), harness(method, MLP)
    for each in (s, plain):
        each.run_rounds()
    assert not equal(copies(s), copies(plain))
    assert not equal(s.weights(), plain.weights())
