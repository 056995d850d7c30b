"""FedTGP: the adaptive margin and the training of prototypes at the server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.helpers import equal
from tests.methods.one_client import features

from fedchoir.losses import margin_contrast
from fedchoir.payload import Payload

Make = Callable[..., FederationHarness]
CLASSES = torch.tensor([0, 1, 2, 0, 1, 2])


def drawn(width: int = 6) -> torch.Tensor:
    """Two clients' prototypes of three classes."""
    return 2 * torch.randn(6, width, generator=torch.Generator().manual_seed(4))


def payloads(rows: torch.Tensor) -> dict[int, Payload]:
    owned = torch.tensor([True, True, True, False])
    absent = torch.zeros(1, rows.shape[1])
    return {k: Payload(prototypes=torch.cat([rows[3 * k : 3 * k + 3], absent]), owned=owned) for k in (0, 1)}


@pytest.mark.parametrize("gap", ["largest", "nearest"])
def test_the_margin_is_a_gap_between_class_means_up_to_the_threshold(gap: str, harness: Make) -> None:
    rows = drawn()
    q = (rows[:3] + rows[3:]).numpy() / 2
    distances = [[np.linalg.norm(a - b) for b in q] for a in q]
    expected = max(map(max, distances)) if gap == "largest" else max(sorted(row)[1] for row in distances)
    method = harness("fedtgp", gap=gap, feature_dim=6).method
    assert method.adaptive_margin(rows, CLASSES) == pytest.approx(expected, rel=1e-5)
    capped = harness("fedtgp", gap=gap, feature_dim=6, margin=0.5).method
    assert capped.adaptive_margin(rows, CLASSES) == 0.5
    assert method.adaptive_margin(rows[:1], CLASSES[:1]) == 0  # one class has no gap
    assert method.adaptive_margin(rows[:0], CLASSES[:0]) == 0


def test_the_server_trains_as_plain_sgd_on_full_batches_does(harness: Make) -> None:
    s = harness("fedtgp", feature_dim=6, server_epochs=3, server_batch=100, server_lr=0.1)
    rows, method = drawn(), s.method
    start = method.trainable_prototypes()
    margin = method.adaptive_margin(rows, CLASSES)
    weights = {name: p.detach().clone().requires_grad_() for name, p in start.named_parameters()}
    for _ in range(3):
        hidden = (weights["vectors"] @ weights["layers.0.weight"].T + weights["layers.0.bias"]).relu()
        u = hidden @ weights["layers.2.weight"].T + weights["layers.2.bias"]
        distances = (rows[:, None] - u[None]).square().sum(dim=2).sqrt()
        scores = torch.exp(-distances - margin * torch.eye(4)[CLASSES])
        loss = -torch.log(scores[torch.arange(6), CLASSES] / scores.sum(dim=1)).mean()
        gradients = torch.autograd.grad(loss, list(weights.values()))
        weights = {
            name: (w - 0.1 * g).detach().requires_grad_()
            for (name, w), g in zip(weights.items(), gradients, strict=True)
        }
    method.update_prototypes(s.spec.round(0, method.params), payloads(rows))
    for name, w in weights.items():
        torch.testing.assert_close(method.server[f"trainable/{name}"], w.detach(), rtol=1e-4, atol=1e-5)


def test_training_separates_the_classes_and_continues_in_the_next_round(harness: Make) -> None:
    s = harness("fedtgp", feature_dim=6, server_lr=0.1)
    method, rows = s.method, drawn()[:3].repeat(2, 1) + 0.1 * drawn()
    margin = method.adaptive_margin(rows, CLASSES)
    values = [margin_contrast(method.trainable_prototypes()().detach(), rows, CLASSES, margin).item()]
    for index in range(2):
        method.update_prototypes(s.spec.round(index, method.params), payloads(rows))
        values.append(margin_contrast(method.server["prototypes"], rows, CLASSES, margin).item())
    assert values == sorted(values, reverse=True)
    nearest = torch.cdist(rows, method.server["prototypes"]).argmin(dim=1)
    assert nearest.tolist() == CLASSES.tolist()
    assert method.server["present"].tolist() == [True, True, True, False]
    assert torch.equal(method.trainable_prototypes()().detach(), method.server["prototypes"])


def test_without_any_prototype_nothing_is_trained(harness: Make) -> None:
    s = harness("fedtgp", feature_dim=6)
    empty = {0: Payload(prototypes=torch.zeros(4, 6), owned=torch.zeros(4, dtype=torch.bool))}
    s.method.update_prototypes(s.spec.round(0, s.method.params), empty)
    assert not s.method.server["present"].any()
    initial = harness("fedtgp", feature_dim=6).method.trainable_prototypes()
    assert equal(Payload(s.method.server).under("trainable"), initial.state_dict())


def test_clients_send_their_means_and_receive_trained_prototypes(harness: Make, uneven: Path) -> None:
    s = harness("fedtgp", scenario=uneven, feature_dim=6)
    (event,) = s.run_rounds()
    assert event["bytes_up"] == 3 * (4 * 4 * 6 + 4)
    assert event["bytes_down"] == 3 * (4 * 4 * 6 + 4)
    client = next(c for c in s.clients if c.name == "green")
    sent = s.method.share_prototypes(client)
    assert sent["owned"].tolist() == [False, True, True, False]
    h, y = features(client), client.private.labels.numpy()
    np.testing.assert_allclose(sent["prototypes"][1], h[y == 1].mean(axis=0), rtol=1e-4, atol=1e-5)
    for c in s.clients:
        assert torch.equal(s.method.nearest(c).prototypes, s.method.server["prototypes"])
        assert s.method.nearest(c).present.tolist() == [True, True, True, False]
