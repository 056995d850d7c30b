"""APFL: the gradients of the local model and of α, and the two ends of the mixture."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.helpers import equal
from torch.nn.functional import cross_entropy

from fedchoir.core.training import Batch

Make = Callable[..., FederationHarness]
MLP = ("mlp@16",)


def alphas(s: FederationHarness) -> list[float]:
    return [c.modules["mixture"].get_parameter("alpha").item() for c in s.clients]


def test_the_gradients_are_those_of_the_mixture(harness: Make) -> None:
    """∇_v = α ∇f(v̄), ∇_α = ⟨∇f(v̄), v − w⟩, ∇_w = ∇f(w)."""
    s = harness("apfl", ("resnet10@2",), alpha=0.3)
    s.run_rounds(2)
    client = s.clients[0]
    alpha = s.method.alpha(client)
    inputs, labels = next(client.private_chunks())
    v, w = (client.modules[name].eval() for name in ("local_model", "global_model"))
    a = alpha.item()
    mixed = deepcopy(v)
    with torch.no_grad():
        for p, x, y in zip(mixed.parameters(), v.parameters(), w.parameters(), strict=True):
            p.copy_(a * x + (1 - a) * y)
    of_mixture = torch.autograd.grad(cross_entropy(mixed(inputs), labels), list(mixed.parameters()))
    of_w = torch.autograd.grad(cross_entropy(w(inputs), labels), list(w.parameters()))
    slope = sum((g * (x - y)).sum() for g, x, y in zip(of_mixture, v.parameters(), w.parameters(), strict=True))
    for module in (*client.modules.values(), client.model):
        module.zero_grad()
    s.method.local_loss(client, Batch(inputs, labels)).backward()
    for x, g in zip(v.parameters(), of_mixture, strict=True):
        torch.testing.assert_close(x.grad, a * g, rtol=1e-4, atol=1e-6)
    for y, g in zip(w.parameters(), of_w, strict=True):
        torch.testing.assert_close(y.grad, g, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(alpha.grad, slope.detach(), rtol=1e-3, atol=1e-5)
    assert all(p.grad is None for p in client.model.parameters())


def test_the_mixture_is_evaluated(harness: Make) -> None:
    s = harness("apfl", ("resnet10@2",), alpha=0.4)
    s.run_rounds(2)
    for client, a in zip(s.clients, alphas(s), strict=True):
        v, w = (client.modules[name].state_dict() for name in ("local_model", "global_model"))
        for name, p in client.model.named_parameters():
            torch.testing.assert_close(p.detach(), a * v[name] + (1 - a) * w[name])
        statistics = client.model.state_dict()["trunk.0.1.running_mean"]
        assert torch.equal(statistics, v["trunk.0.1.running_mean"])
        assert not torch.equal(statistics, w["trunk.0.1.running_mean"])


def test_alpha_is_learned_at_every_client_and_stays_a_share(harness: Make) -> None:
    s = harness("apfl", ("simple_cnn@4",), local_lr=0.05)
    s.run_rounds(2)
    assert len(set(alphas(s))) == 3
    fast = harness("apfl", ("simple_cnn@4",), optimizer="sgd", local_lr=5.0, local_epochs=2)
    fast.run_rounds()
    assert all(0 <= a <= 1 for a in alphas(fast))
    fixed = harness("apfl", ("simple_cnn@4",), alpha=0.25, adaptive=False)
    fixed.run_rounds(2)
    assert alphas(fixed) == [0.25] * 3


@pytest.mark.parametrize(("alpha", "other"), [(1.0, "solo"), (0.0, "fedavg")])
def test_the_ends_of_the_mixture_are_training_alone_and_fedavg(alpha: float, other: str, harness: Make) -> None:
    s, reference = harness("apfl", MLP, alpha=alpha, adaptive=False), harness(other, MLP)
    for each in (s, reference):
        each.run_rounds(2)
    assert equal(s.weights(), reference.weights())
