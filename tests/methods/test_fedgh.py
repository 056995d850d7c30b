"""FedGH: the head that the server trains on class prototypes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.helpers import equal
from tests.methods.one_client import features

from fedchoir.methods.lg_fedavg import head_state
from fedchoir.payload import Payload
from fedchoir.utils.rng import generator

Make = Callable[..., FederationHarness]
CLASSES = torch.tensor([0, 1, 3, 2, 1])


def softmax_regression(
    weight: np.ndarray, bias: np.ndarray, rows: np.ndarray, classes: np.ndarray, order: list[list[int]], lr: float
) -> tuple[np.ndarray, np.ndarray]:
    """SGD on cross-entropy by its gradient (p − onehot)ᵀ h, batch by batch."""
    for batch in order:
        h, y = rows[batch], np.eye(len(bias))[classes[batch]]
        z = h @ weight.T + bias
        p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        weight, bias = weight - lr * (p - y).T @ h / len(batch), bias - lr * (p - y).mean(axis=0)
    return weight, bias


@pytest.mark.parametrize("batch", [1, 2])
def test_the_server_trains_a_softmax_regression_on_the_prototypes(batch: int, harness: Make) -> None:
    s = harness("fedgh", feature_dim=6, server_lr=0.2, server_epochs=3, server_batch=batch)
    rows = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    draw = generator(s.spec.seed, "head", 1)
    order = [part.tolist() for _ in range(3) for part in torch.randperm(5, generator=draw).split(batch)]
    start = [t.double().numpy() for t in head_state(s.clients[0].model).values()]
    weight, bias = softmax_regression(*start, rows.double().numpy(), CLASSES.numpy(), order, 0.2)
    trained = s.method.trained_head(s.spec.round(1, s.method.params), rows, CLASSES)
    np.testing.assert_allclose(trained["head/head.weight"], weight, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(trained["head/head.bias"], bias, rtol=1e-4, atol=1e-6)


def test_the_global_head_learns_the_prototypes_and_is_the_same_at_all_clients(harness: Make, uneven: Path) -> None:
    options = {"tested_head": "global", "server_lr": 0.5, "server_epochs": 200}
    s = harness("fedgh", scenario=uneven, feature_dim=32, **options)
    (event,) = s.run_rounds()
    assert event["bytes_up"] == 3 * (4 * 4 * 32 + 4)
    assert event["bytes_down"] == 3 * 4 * (4 * 32 + 4)
    states = [head_state(c.model) for c in s.clients]
    assert equal(states, [Payload(s.method.server).under("head")] * 3)
    sent = {c.index: s.method.share_prototypes(c) for c in s.clients}
    weight, bias = (states[0][name].numpy() for name in ("head.weight", "head.bias"))
    for c in s.clients:
        h, y = features(c), c.private.labels.numpy()
        for k in set(y.tolist()):
            mean = h[y == k].mean(axis=0)
            np.testing.assert_allclose(sent[c.index]["prototypes"][k], mean, rtol=1e-4, atol=1e-5)
            assert (weight @ mean + bias).argmax() == k
        assert sent[c.index]["owned"].tolist() == [k in y for k in range(4)]


def test_the_head_of_the_released_code_is_never_trained(harness: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    s = harness("fedgh", server_epochs=0)
    initial = head_state(s.clients[0].model)
    initial = {n: t.clone() for n, t in initial.items()}
    starts: list[dict[str, torch.Tensor]] = []
    local_update = type(s.method).local_update

    def spy(method: object, client: object) -> None:
        starts.append({n: t.clone() for n, t in head_state(client.model).items()})  # type: ignore[attr-defined]
        local_update(method, client)  # type: ignore[arg-type]

    monkeypatch.setattr(type(s.method), "local_update", spy)
    s.run_rounds(2)
    assert equal(starts, [initial] * 6)
    assert not equal(head_state(s.clients[0].model), initial)  # its own, after training, is tested


def test_without_any_prototype_the_head_stays(harness: Make) -> None:
    s = harness("fedgh", feature_dim=6)
    rows, classes = torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64)
    trained = s.method.trained_head(s.spec.round(0, s.method.params), rows, classes)
    assert equal(trained.under("head"), head_state(s.method.architecture))
