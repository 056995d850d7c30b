"""FD: targets from other clients' mean outputs, and the distillation to them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.helpers import equal
from tests.methods.unequal_classes import COUNTS, unequal_classes

from fedchoir.core.training import Batch
from fedchoir.payload import Payload

Make = Callable[..., FederationHarness]


@pytest.fixture
def unequal(tmp_path: Path) -> Path:
    return unequal_classes(tmp_path / "unequal")


def own_means(s: FederationHarness, outputs: str) -> dict[str, dict[int, np.ndarray]]:
    """Every client's mean output for each of its classes, by hand."""
    found = {}
    for c in s.clients:
        c.model.eval()
        with torch.no_grad():
            z = torch.cat([c.logits(images) for images, _ in c.private_chunks()]).double().numpy()
        f = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True) if outputs == "probabilities" else z
        y = c.private.labels.numpy()
        found[c.name] = {k: f[y == k].mean(axis=0) for k in set(y.tolist())}
    return found


@pytest.mark.parametrize("outputs", ["probabilities", "logits"])
@pytest.mark.parametrize("exclude_own", [True, False])
def test_targets_are_means_over_the_other_clients_that_have_the_class(
    outputs: str, exclude_own: bool, harness: Make, unequal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = harness("fd", scenario=unequal, outputs=outputs, exclude_own=exclude_own)
    (event,) = s.run_rounds()
    assert event["bytes_up"] == 3 * 4 * (4 * 4 + 4 + 3)
    means = own_means(s, outputs)
    monkeypatch.setattr(type(s.method), "local_update", lambda method, client: None)
    s.run_rounds()
    for c in s.clients:
        for k in range(4):
            others = [u[k] for name, u in means.items() if k in u and (name != c.name or not exclude_own)]
            assert bool(c.stored_tensor("known")[k]) == bool(others)
            if others:
                expected = np.mean(others, axis=0)
                np.testing.assert_allclose(c.stored_tensor("targets")[k], expected, rtol=1e-4, atol=1e-5)
    green = next(c for c in s.clients if c.name == "green")
    assert [k for k in range(4) if any(COUNTS[name][k] for name in ("red", "white"))] == [0, 1, 2]
    assert green.stored_tensor("known").tolist() == [True, True, True, False]


def test_a_client_that_was_not_in_the_mean_subtracts_nothing(harness: Make) -> None:
    s = harness("fd", outputs="logits")
    client = s.clients[0]
    s.method.share_outputs(client)  # an earlier round's, not in the mean below
    others = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(0))
    sender = torch.tensor([0.0, 0.5, 0.5])
    s.method.store_targets(client, Payload(outputs=others.mean(dim=0), owned=torch.ones(4), sender=sender))
    torch.testing.assert_close(client.stored_tensor("targets"), others.mean(dim=0))


def test_a_class_that_nobody_else_has_is_without_distillation(harness: Make) -> None:
    s = harness("fd")
    client = s.clients[0]
    own = s.method.share_outputs(client)
    alone = Payload({name: t / 3 for name, t in own.items() if name != "sender"}, sender=torch.full((3,), 1 / 3))
    s.method.store_targets(client, alone)  # the other two clients have no class at all
    assert not client.stored_tensor("known").any()
    images, labels = next(client.private_chunks())
    plain = s.method.supervised_loss(client, Batch(images, labels))
    assert torch.equal(s.method.local_loss(client, Batch(images, labels)), plain)


@pytest.mark.parametrize("outputs", ["probabilities", "logits"])
def test_the_loss_adds_the_distillation(outputs: str, harness: Make) -> None:
    s = harness("fd", gamma=0.4, outputs=outputs)
    client = s.clients[0]
    images, labels = next(client.private_chunks())
    targets = torch.rand(4, 4, generator=torch.Generator().manual_seed(1)).softmax(dim=1)
    client.memory["targets"], client.memory["known"] = targets, torch.tensor([True, True, True, False])
    with torch.no_grad():
        z = client.logits(images).double().numpy()
    log_p = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    y, t = labels.numpy(), targets.double().numpy()[labels]
    each = -(t * log_p).sum(axis=1) if outputs == "probabilities" else np.square(z - t).mean(axis=1)
    expected = -log_p[np.arange(len(y)), y].mean() + 0.4 * (each * (y < 3)).mean()
    assert s.method.local_loss(client, Batch(images, labels)).item() == pytest.approx(expected, rel=1e-4)


def test_without_its_weight_it_is_solo(harness: Make) -> None:
    alone, apart, together = harness("solo"), harness("fd", gamma=0.0), harness("fd")
    for s in (alone, apart, together):
        s.run_rounds(2)
    assert equal(alone.weights(), apart.weights())
    assert not equal(alone.weights(), together.weights())


def test_a_robust_rule_still_gives_targets(harness: Make) -> None:
    s = harness("fd", robust="median")
    events = s.run_rounds(2)
    assert not any(event["left_out"] for event in events)
    assert all(c.stored_tensor("targets").isfinite().all() for c in s.clients)
