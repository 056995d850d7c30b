"""FedProx: the proximal term."""

from __future__ import annotations

from collections.abc import Callable

from tests.federation_harness import FederationHarness

CNN = ("simple_cnn@4",)
Make = Callable[..., FederationHarness]


def test_fedprox_holds_the_weights_near_the_global_ones(harness: Make) -> None:
    def distance(mu: float) -> float:
        s = harness("fedprox", CNN, mu=mu)
        s.run_rounds()
        start = s.method.architecture.state_dict()
        return sum((w[n] - start[n]).square().sum().item() for w in s.weights() for n in start)

    assert distance(100.0) < 0.5 * distance(0.0)
