"""Ditto: the gradient of the personal model, and its two extremes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tests.federation_harness import FederationHarness
from tests.helpers import equal
from torch.nn.functional import cross_entropy

from fedchoir.core.training import Batch

Make = Callable[..., FederationHarness]


def test_the_personal_gradient_has_a_pull_to_the_received_weights(harness: Make) -> None:
    """∇F(v) + λ (v − w) for the personal model, ∇F(w_k) for the copy; w is what was received, not w_k."""
    s = harness("ditto", ("resnet10@2",), lam=0.7)
    s.run_rounds(2)
    client = s.clients[0]
    inputs, labels = next(client.private_chunks())
    received = client.stored_weights("global")
    copy = client.modules["global_model"]
    assert not equal(dict(copy.named_parameters()), received)  # it has moved on
    for model in (client.model, copy):
        model.eval().zero_grad()
    expected = []
    for model in (client.model, copy):
        parameters = list(model.parameters())
        expected.append(torch.autograd.grad(cross_entropy(model(inputs), labels), parameters))
    s.method.local_loss(client, Batch(inputs, labels)).backward()
    for (name, p), g in zip(client.model.named_parameters(), expected[0], strict=True):
        torch.testing.assert_close(p.grad, g + 0.7 * (p.detach() - received[name]), rtol=1e-4, atol=1e-5)
    for p, g in zip(copy.parameters(), expected[1], strict=True):
        torch.testing.assert_close(p.grad, g, rtol=1e-4, atol=1e-5)


def test_without_the_pull_every_client_trains_alone(harness: Make) -> None:
    apart, alone = harness("ditto", ("resnet10@2",), lam=0.0), harness("solo", ("resnet10@2",))
    events = [s.run_rounds(2) for s in (apart, alone)]
    assert equal(apart.weights(), alone.weights())
    assert [e["accuracy"] for e in events[0]] == [e["accuracy"] for e in events[1]]  # the personal model is evaluated


def test_a_stronger_pull_brings_the_personal_models_together(harness: Make) -> None:
    def spread(lam: float) -> float:
        s = harness("ditto", ("simple_cnn@4",), lam=lam)
        s.run_rounds(2)
        first, *others = s.weights()
        return sum((state[n] - first[n]).square().sum().item() for state in others for n in first)

    assert spread(30.0) < 0.5 * spread(0.0)
