"""FPL: clusters of prototypes, unbiased prototypes, and the losses against them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.helpers import Stop, StopAfter, assert_same, equal
from tests.methods.one_client import features
from torch.nn.functional import cross_entropy

from fedchoir import Experiment, run
from fedchoir.core.training import Batch
from fedchoir.payload import Payload

Make = Callable[..., FederationHarness]
CNN = ("simple_cnn@4",)


def test_clusters_are_means_of_first_neighbours_and_unbiased_prototypes_means_of_clusters(harness: Make) -> None:
    s = harness("fpl", feature_dim=2)
    angles = torch.tensor([[0.0, 0.1, 1.5, 1.6, 1.7], [2.0, 2.1, 2.2, 0.0, 0.0]])  # five clients, two classes
    rows = torch.stack([angles.cos(), angles.sin()], dim=2) * torch.arange(1, 6)[None, :, None]
    owned = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    absent = torch.zeros(2, 2)
    payloads = {
        k: Payload(
            prototypes=torch.cat([rows[:, k] * owned[:, k, None], absent]),
            owned=torch.cat([owned[:, k], torch.zeros(2, dtype=torch.bool)]),
        )
        for k in range(5)
    }
    found = s.method.clustered(payloads)
    expected = torch.stack([rows[0, :2].mean(0), rows[0, 2:].mean(0), rows[1, :3].mean(0)])
    assert found["classes"].tolist() == [0, 0, 1]
    torch.testing.assert_close(found["clusters"], expected)
    client = s.clients[0]
    s.method.receive(client, found)
    torch.testing.assert_close(client.stored_tensor("unbiased")[:2], torch.stack([expected[:2].mean(0), expected[2]]))
    assert client.stored_tensor("present").tolist() == [True, True, False, False]
    assert client.stored_tensor("classes").tolist() == [0, 0, 1, -1]  # four classes, three clients: one cluster each


def test_the_loss_is_the_sum_of_three(harness: Make, uneven: Path) -> None:
    s = harness("fpl", scenario=uneven, feature_dim=6, temperature=0.3, distance="squared")
    s.run_rounds()
    client = next(c for c in s.clients if c.name == "red")
    local = [features(c) for c in s.clients]
    labels = [c.private.labels.numpy() for c in s.clients]
    owners = {k: [h[y == k].mean(axis=0) for h, y in zip(local, labels, strict=True) if k in y] for k in range(3)}
    clusters = {k: np.mean(u, axis=0) for k, u in owners.items()}  # two or three first neighbours are one cluster
    s.method.receive(client, Payload(s.method.server))
    images, y = next(client.private_chunks())
    client.model.eval()
    with torch.no_grad():
        h, z = client.features_and_logits(images)
    expected = cross_entropy(z, y).item()
    for row, k in zip(h.numpy(), y.tolist(), strict=True):
        unit = {c: u @ row / np.linalg.norm(u) / np.linalg.norm(row) for c, u in clusters.items()}
        scores = {c: np.exp(value / 0.3) for c, value in unit.items()}
        contrast = -np.log(scores[k] / sum(scores.values()))
        expected += (contrast + np.square(row - clusters[k]).sum()) / len(y)
    assert s.method.local_loss(client, Batch(images, y)).item() == pytest.approx(expected, rel=1e-3)


def test_without_its_terms_it_is_fedavg(harness: Make) -> None:
    off = {"use_cpcl": False, "use_upcr": False, "feature_dim": 0}
    plain, switched, on = harness("fedavg", CNN), harness("fpl", CNN, **off), harness("fpl", CNN, feature_dim=0)
    first, second, _ = (s.run_rounds(3)[-1] for s in (plain, switched, on))
    assert equal(plain.weights(), switched.weights())
    assert first["accuracy"] == second["accuracy"]
    assert not equal(plain.weights(), on.weights())


def test_one_architecture_has_a_global_model_and_several_exchange_prototypes_alone(harness: Make) -> None:
    same, different = harness("fpl", CNN, feature_dim=6), harness("fpl", feature_dim=6)
    one, several = same.run_rounds()[0], different.run_rounds()[0]
    prototypes = 3 * (4 * 4 * 6 + 4)
    assert several["bytes_up"] == prototypes
    assert one["bytes_up"] == prototypes + 3 * sum(t.nbytes for t in same.weights()[0].values())
    assert different.method.global_weights() is None
    assert same.method.global_weights().keys() == same.weights()[0].keys()
    assert one["accuracy"][0] == one["accuracy"][1] == one["accuracy"][2]


def test_without_averaging_one_architecture_exchanges_prototypes_alone(harness: Make) -> None:
    s = harness("fpl", CNN, rounds=2, feature_dim=6, average="never")
    assert [event["bytes_up"] for event in s.run_rounds(2)] == [3 * (4 * 4 * 6 + 4)] * 2
    assert s.method.global_weights() is None
    assert not equal(*s.weights()[:2])


def test_a_run_of_one_architecture_resumes_exactly(small: Callable[..., Experiment]) -> None:
    straight, stopped = (small("fpl", name, models=CNN, rounds=3) for name in ("straight", "stopped"))
    run(straight)
    with pytest.raises(Stop):
        run(stopped, observers=[StopAfter(0)])
    run(stopped, resume=True)
    assert_same(straight, stopped)


def test_classes_that_a_client_or_everyone_lacks_break_nothing(harness: Make, uneven: Path) -> None:
    s = harness("fpl", scenario=uneven, fraction=0.67, rounds=3)
    events = s.run_rounds(3)
    assert not any(event["left_out"] for event in events)
    assert all(t.isfinite().all() for weights in s.weights() for t in weights.values())


def test_no_prototype_gives_no_cluster(harness: Make) -> None:
    s = harness("fpl", feature_dim=6)
    empty = Payload(prototypes=torch.zeros(4, 6), owned=torch.zeros(4, dtype=torch.bool))
    found = s.method.clustered({0: empty, 1: empty})
    assert found["clusters"].shape == (0, 6)
    s.method.receive(s.clients[0], found)
    assert not s.clients[0].stored_tensor("present").any()
