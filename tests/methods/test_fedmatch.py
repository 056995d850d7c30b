"""FedMatch: helpers, consistency and agreed labels against NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.helpers import equal
from tests.methods.public_checks import divergence, drawn, loss_on, predictions, softmax

from fedchoir.core.training import Batch
from fedchoir.payload import Payload

Make = Callable[..., FederationHarness]
PLAIN = ("simple_cnn@4", "mlp", "simple_cnn@6")  # no BatchNorm and no dropout


def nearest(p: dict[int, np.ndarray], i: int, count: int) -> list[int]:
    return sorted((k for k in p if k != i), key=lambda k: ((p[k] - p[i]) ** 2).sum())[:count]


def test_helpers_are_the_nearest_and_count_where_they_are_confident(harness: Make) -> None:
    s = harness("fedmatch", helpers=1, confidence=0.75, gate="helper", agreement=0.0)
    aggregated = drawn(s)
    p = {k: softmax(v["logits"].double().numpy()) for k, v in aggregated.items()}
    received = s.method.of_helpers(aggregated)
    assert set(received[0]) == {"pool", "negentropy"}
    own = predictions(s)
    for i in range(3):
        (helper,) = nearest(p, i, 1)
        counted = p[helper].max(axis=1) >= 0.75
        assert 0 < counted.sum() < 16
        expected = (divergence(p[helper], own[i]) * counted).mean()
        assert loss_on(s, i, received[i]) == pytest.approx(expected, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("helpers", [1, 2])
def test_the_own_confidence_decides_and_votes_give_the_label(harness: Make, helpers: int) -> None:
    """Over the samples of which the client is confident: mean KL to the helpers, and CE of the strong copy to the
    class with the most votes; the client's own logits are drawn, too."""
    s = harness("fedmatch", PLAIN, helpers=helpers, confidence=0.75, consistency=0.5, agreement=2.0)
    aggregated = drawn(s)
    p = {k: softmax(v["logits"].double().numpy()) for k, v in aggregated.items()}
    received = s.method.of_helpers(aggregated)
    strong = 2 * torch.randn(16, 4, generator=torch.Generator().manual_seed(9))
    for i, client in enumerate(s.clients):
        outputs = {"weak": aggregated[i]["logits"], "strong": strong}
        client.logits = lambda name, outputs=outputs: outputs[name]  # type: ignore[method-assign]
        batch = Batch("weak", torch.empty(0), {**received[i], "strong": "strong"})  # type: ignore[arg-type, dict-item]
        helped = nearest(p, i, helpers)
        confident = p[i].max(axis=1) >= 0.75
        assert 0 < confident.sum() < 16
        kl = np.mean([divergence(p[k], p[i]) for k in helped], axis=0)
        votes = np.zeros((16, 4))
        for k in (i, *helped):
            votes[np.arange(16), p[k].argmax(axis=1)] += 1
        log_strong = np.log(softmax(strong.double().numpy()))
        ce = -log_strong[np.arange(16), votes.argmax(axis=1)]
        expected = 0.5 * kl[confident].mean() + 2.0 * ce[confident].mean()
        assert s.method.public_loss(client, batch).item() == pytest.approx(expected, rel=1e-4)


def test_more_helpers_than_clients_are_all_the_others(harness: Make) -> None:
    s = harness("fedmatch", helpers=9)
    aggregated = drawn(s)
    received = s.method.of_helpers(aggregated)
    others = (aggregated[1]["logits"].softmax(1) + aggregated[2]["logits"].softmax(1)) / 2
    torch.testing.assert_close(received[0]["pool"], others)
    assert (received[0]["votes"].sum(dim=1) == 2).all()
    alone = s.method.of_helpers({1: aggregated[1]})
    assert not any(payload[name].any() for payload in alone.values() for name in payload)


@pytest.mark.parametrize("gate", ["own", "helper"])
def test_without_confidence_nothing_is_learned(harness: Make, gate: str) -> None:
    """The public phase then moves BatchNorm's statistics alone; these models have none."""
    quiet, alone = harness("fedmatch", PLAIN, confidence=1.0, gate=gate), harness("solo", PLAIN)
    quiet.run_rounds(), alone.run_rounds()
    assert equal(quiet.weights(), alone.weights())


def test_the_copy_is_another_view_of_the_same_samples(harness: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    views = {}
    for kind in ("weak", "none"):
        s = harness("fedmatch", PLAIN, public_augment=kind)
        client = s.clients[0]
        seen: dict[str, torch.Tensor] = {}
        monkeypatch.setattr(type(client), "public_step", lambda c, b, loss, seen=seen, **t: seen.update(t))
        s.method.public_update(client, s.batch(), Payload())
        weak = client.public_samples(s.batch())
        assert torch.equal(weak, s.clients[1].public_samples(s.batch()))
        views[kind] = torch.equal(weak, seen["strong"])
    assert views == {"weak": False, "none": True}
