"""FedProto: global prototypes, the distance to them, and prediction by the nearest one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.helpers import equal
from tests.methods.one_client import features
from tests.methods.unequal_classes import unequal_classes
from torch.nn.functional import cross_entropy

from fedchoir.core.training import Batch
from fedchoir.payload import Payload
from fedchoir.utils.errors import UsageError

Make = Callable[..., FederationHarness]
CNN = ("simple_cnn@4",)


@pytest.fixture
def unequal(tmp_path: Path) -> Path:
    return unequal_classes(tmp_path / "unequal")


@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_global_prototypes_are_means_over_the_clients_that_have_the_class(
    weighting: str, harness: Make, unequal: Path
) -> None:
    s = harness("fedproto", scenario=unequal, weighting=weighting, feature_dim=6)
    s.run_rounds()
    sums, weights = np.zeros((4, 6)), np.zeros(4)
    for c in s.clients:
        for h, y in zip(features(c), c.private.labels.tolist(), strict=True):
            share = 1.0 if weighting == "size" else 1 / int((c.private.labels == y).sum())
            sums[y] += share * h
            weights[y] += share
    for c in s.clients:
        known = s.method.nearest(c)
        assert known.present.tolist() == [True, True, True, False]
        np.testing.assert_allclose(known.prototypes[:3], sums[:3] / weights[:3, None], rtol=1e-4, atol=1e-5)
        assert torch.equal(known.prototypes, s.method.server["prototypes"])


@pytest.mark.parametrize("distance", ["mse", "squared", "euclidean"])
def test_the_loss_adds_the_distance_to_the_prototype_of_the_class(distance: str, harness: Make, unequal: Path) -> None:
    s = harness("fedproto", scenario=unequal, prototype_weight=0.7, distance=distance, feature_dim=6)
    client = s.clients[0]
    images, labels = next(client.private_chunks())
    with torch.no_grad():
        h, z = client.features_and_logits(images)
    plain = cross_entropy(z, labels).item()
    assert s.method.local_loss(client, Batch(images, labels)).item() == pytest.approx(plain)  # no prototypes yet
    u = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    s.method.store_prototypes(client, Payload(prototypes=u, present=torch.tensor([True, False, True, True])))
    rows = [np.square(a - u[y].numpy()) for a, y in zip(h.numpy(), labels, strict=True) if y != 1]
    each = {"mse": np.mean, "squared": np.sum, "euclidean": lambda row: np.sqrt(np.sum(row))}[distance]
    expected = plain + 0.7 * sum(map(each, rows)) / len(labels)
    assert s.method.local_loss(client, Batch(images, labels)).item() == pytest.approx(expected, rel=1e-4)


def test_without_its_weight_it_is_solo(harness: Make) -> None:
    off = {"prototype_weight": 0.0, "feature_dim": 0, "predict_by": "head"}
    alone, apart = harness("solo", CNN), harness("fedproto", CNN, **off)
    together = harness("fedproto", CNN, feature_dim=0)
    first, second, _ = (s.run_rounds(2)[-1] for s in (alone, apart, together))
    assert equal(alone.weights(), apart.weights())
    assert first["accuracy"] == second["accuracy"]
    assert not equal(alone.weights(), together.weights())


def test_the_nearest_prototype_predicts_and_an_exported_module_too(harness: Make, unequal: Path) -> None:
    s = harness("fedproto", scenario=unequal, feature_dim=6)
    client = s.clients[1]
    images, _ = next(client.private_chunks())
    client.model.eval()
    with torch.no_grad():
        torch.testing.assert_close(s.method.predict(client, images), client.logits(images))  # no prototypes yet
    s.run_rounds()
    client.model.eval()
    with torch.no_grad():
        scores = s.method.predict(client, images)
        module = s.method.inference_module(client.model, client.modules)
        torch.testing.assert_close(module(images), scores)
    u = s.method.nearest(client).prototypes.numpy()
    distances = np.square(features(client)[:, None] - u[None, :3]).sum(axis=2)
    np.testing.assert_allclose(-scores[:, :3].numpy(), distances, rtol=1e-3, atol=1e-3)
    assert not (scores.argmax(dim=1) == 3).any()  # nobody has class 3
    head = harness("fedproto", predict_by="head").method
    assert head.inference_module(client.model, client.modules) is client.model


def test_a_round_costs_prototypes_in_both_directions(harness: Make) -> None:
    s = harness("fedproto", feature_dim=6)
    for event in s.run_rounds(2):
        assert event["bytes_up"] == 3 * 4 * (4 * 6 + 4)
        assert event["bytes_down"] == 3 * (4 * 4 * 6 + 4)


def test_clients_that_missed_a_round_get_the_prototypes_first(harness: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    s = harness("fedproto", fraction=0.34)
    starts = []
    local_update = type(s.method).local_update

    def spy(method: object, client: object) -> None:
        starts.append((s.method.nearest(client).prototypes.clone(), s.method.server.get("prototypes")))
        local_update(method, client)  # type: ignore[arg-type]

    monkeypatch.setattr(type(s.method), "local_update", spy)
    s.run_rounds(4)
    assert len({s.spec.participants(r, 0.34) for r in range(4)}) > 1
    assert all(torch.equal(own, sent) for own, sent in starts[1:])


def test_a_class_that_no_client_of_a_round_has_keeps_its_prototype(harness: Make) -> None:
    method = harness("fedproto", feature_dim=2).method
    u, share = torch.ones(4, 2), torch.tensor([0.5, 0.25, 0.0, 0.25])
    method.update_prototypes(None, Payload(prototypes=share[:, None] * u, share=share))
    share = torch.tensor([0.0, 0.5, 0.5, 0.0])
    method.update_prototypes(None, Payload(prototypes=share[:, None] * 3 * u, share=share))
    assert method.server["prototypes"].tolist() == [[1, 1], [3, 3], [3, 3], [1, 1]]
    assert method.server["present"].tolist() == [True] * 4


def test_different_architectures_need_one_feature_width(harness: Make) -> None:
    with pytest.raises(UsageError, match="feature_dim = 0 is not possible with fedproto and different architectures"):
        harness("fedproto", feature_dim=0)
