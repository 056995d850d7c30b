"""FedDyn: the regularised local steps and the server's update against plain loops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.methods.one_client import State, a_client, a_method, parameters
from tests.methods.reference_sgd import train

from fedchoir.methods.feddyn import FedDyn
from fedchoir.payload import Payload

Make = Callable[..., FederationHarness]


def drawn(like: State, seed: int) -> State:
    draw = torch.Generator().manual_seed(seed)
    return {n: 0.1 * torch.randn(t.shape, generator=draw) for n, t in like.items()}


def test_a_client_minimises_the_regularised_loss() -> None:
    method = a_method(FedDyn, alpha=0.3)
    client = a_client(method)
    start = parameters(client)
    gradient = drawn(start, 1)
    client.phase = "practise"
    client.memory["gradient"] = dict(reversed(gradient.items()))  # a checkpoint may have another order
    theta, _ = train(client, 0.05, 0.0, lambda n, p, g: g - gradient[n] + 0.3 * (p - start[n]))
    method.local_update(client)
    for n in start:
        torch.testing.assert_close(parameters(client)[n], theta[n], rtol=1e-4, atol=1e-5)
        expected = gradient[n] - 0.3 * (theta[n] - start[n])
        torch.testing.assert_close(client.stored_weights("gradient")[n], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_the_server_subtracts_its_drift(weighting: str) -> None:
    """Two updates with h itself, as in the paper: the server stores h/α."""
    alpha, share = 0.2, 30 / 42 if weighting == "size" else 1 / 2
    method = a_method(FedDyn, alpha=alpha, weighting=weighting)
    list(method.setup())
    state = method.architecture.state_dict()
    theta = {n: p.clone() for n, p in method.architecture.named_parameters()}
    h = {n: torch.zeros_like(t) for n, t in theta.items()}
    for seed in (1, 2):
        mean = drawn(theta, seed)
        method.server_update(
            Payload({f"weights/{n}": mean.get(n, t + seed) for n, t in state.items()}), method.share((1,))
        )
        for n in theta:
            h[n] = h[n] - alpha * share * (mean[n] - theta[n])
            theta[n] = mean[n] - h[n] / alpha
            torch.testing.assert_close(method.server[f"weights/{n}"], theta[n], rtol=1e-4, atol=1e-5)
    assert torch.equal(method.server["weights/trunk.0.1.running_var"], state["trunk.0.1.running_var"] + 2)


def test_the_servers_drift_is_the_mean_of_the_clients_gradients(harness: Make) -> None:
    """h = mean(g_k): where all clients agree, h is zero and so is the gradient of the mean loss."""
    s = harness("feddyn", ("resnet10@2",), alpha=0.5, weighting="uniform")
    s.run_rounds(3)
    for name in (n for n, _ in s.method.architecture.named_parameters()):
        mean = sum(c.stored_weights("gradient")[name] for c in s.clients) / 3
        torch.testing.assert_close(0.5 * s.method.server[f"drift/{name}"], mean, rtol=1e-3, atol=1e-4)


def test_the_first_round_doubles_the_step_of_the_mean(harness: Make) -> None:
    s = harness("feddyn", ("resnet10@2",), weighting="uniform")
    start = {n: p.clone() for n, p in s.method.architecture.named_parameters()}
    s.run_rounds()
    ends = s.weights()
    for name, p in start.items():
        mean = sum(state[name] for state in ends) / 3
        torch.testing.assert_close(s.method.global_weights()[name], 2 * mean - p, rtol=1e-4, atol=1e-5)


def test_a_large_weight_holds_the_clients_at_the_global_weights(harness: Make) -> None:
    def distance(alpha: float) -> float:
        s = harness("feddyn", ("simple_cnn@4",), alpha=alpha)
        s.run_rounds()
        start = s.method.architecture.state_dict()
        return sum((w[n] - start[n]).square().sum().item() for w in s.weights() for n in start)

    assert distance(100.0) < 0.5 * distance(1e-6)
