"""SCAFFOLD: local steps, control variates and the server's update against plain loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.helpers import equal
from tests.methods.one_client import State, a_client, a_method, parameters
from tests.methods.reference_sgd import train

from fedchoir import Experiment, run
from fedchoir.methods.scaffold import Scaffold
from fedchoir.payload import Payload
from fedchoir.utils.errors import UsageError

Make = Callable[..., FederationHarness]
SGD = {"optimizer": "sgd", "local_lr": 0.05, "momentum": 0.0}


def drawn(like: State, seed: int) -> State:
    draw = torch.Generator().manual_seed(seed)
    return {n: 0.1 * torch.randn(t.shape, generator=draw) for n, t in like.items()}


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_client_steps_along_the_corrected_gradient(momentum: float) -> None:
    method = a_method(Scaffold, momentum=momentum)
    client = a_client(method)
    x = parameters(client)
    c, own = drawn(x, 1), drawn(x, 2)
    client.phase = "practise"
    client.memory["global_control"], client.memory["control"] = c, own
    y, gradients = train(client, 0.05, momentum, lambda n, p, g: g - own[n] + c[n])
    method.local_update(client)
    sent = method.upload(client)
    weights = [sum(momentum**j for j in range(len(gradients) - step)) for step in range(len(gradients))]
    for n in x:
        torch.testing.assert_close(parameters(client)[n], y[n], rtol=1e-4, atol=1e-5)
        mean = sum(a * g[n] for a, g in zip(weights, gradients, strict=True)) / sum(weights)
        torch.testing.assert_close(client.stored_weights("control")[n], mean, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(sent[f"control/{n}"], client.stored_weights("control")[n] - own[n])
        torch.testing.assert_close(sent[f"weights/{n}"], parameters(client)[n])
    assert not sent["control/trunk.0.1.running_mean"].any()


@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_the_server_moves_the_weights_and_its_control_variate(weighting: str) -> None:
    method = a_method(Scaffold, server_lr=0.5, weighting=weighting)
    list(method.setup())
    x = {n: p.clone() for n, p in method.architecture.named_parameters()}
    state = method.architecture.state_dict()
    y, change, c = drawn(x, 1), drawn(x, 2), drawn(x, 3)
    method.server |= {f"control/{n}": t for n, t in c.items()}
    mean = {f"weights/{n}": y.get(n, t + 1) for n, t in state.items()}
    method.server_update(Payload(mean | {f"control/{n}": t for n, t in change.items()}), method.share((1,)))
    share = 30 / 42 if weighting == "size" else 1 / 2
    for n in x:
        torch.testing.assert_close(method.server[f"weights/{n}"], x[n] + 0.5 * (y[n] - x[n]))
        torch.testing.assert_close(method.server[f"control/{n}"], c[n] + share * change[n])
    assert torch.equal(method.server["weights/trunk.0.1.running_var"], state["trunk.0.1.running_var"] + 1)


def test_the_servers_control_variate_is_the_mean_of_the_clients(harness: Make) -> None:
    s = harness("scaffold", ("resnet10@2",), weighting="uniform")
    s.run_rounds(3)
    for name in (n for n, _ in s.method.architecture.named_parameters()):
        mean = sum(c.stored_weights("control")[name] for c in s.clients) / 3
        torch.testing.assert_close(s.method.server[f"control/{name}"], mean, rtol=1e-4, atol=1e-5)


def test_without_control_variates_a_round_is_that_of_fedavg(harness: Make) -> None:
    one, two = harness("scaffold", ("resnet10@2",), **SGD), harness("fedavg", ("resnet10@2",), **SGD)
    one.run_rounds(), two.run_rounds()  # they are zero in the first round
    assert equal(one.weights(), two.weights())
    one.run_rounds(), two.run_rounds()
    assert not equal(one.weights(), two.weights())


def test_pretraining_comes_before_the_first_round(small: Callable[..., Experiment]) -> None:
    experiment = small("scaffold", rounds=1, settings={"pretrain_epochs": 1})
    assert run(experiment).intra_avg is not None


def test_adam_is_refused(skew: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match=r"optimizer = 'adam' is not possible: it should be 'sgd'"):
        run(skew("scaffold", optimizer="adam"))
