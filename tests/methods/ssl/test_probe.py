"""The linear probe and nearest neighbours."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from tests.methods.ssl.one_client import one_client

from fedchoir.methods.ssl.probe import LinearProbe, fit_probe, knn_accuracy


def clouds(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Three overlapping clouds of points in 5 dimensions of very different scales."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    centres = 1.5 * torch.eye(3, 5)
    points = centres[labels] + torch.randn(count, 5, generator=draw)
    return points * torch.tensor([1.0, 100.0, 0.01, 1.0, 1.0]), labels


def test_the_probe_is_as_good_as_logistic_regression() -> None:
    _, client = one_client(count=300)
    (train, labels), (test, wanted) = clouds(300), clouds(300, seed=1)
    probe = fit_probe(client, train, labels, epochs=200, batch=100, lr=0.01)
    found = (probe(test).argmax(1) == wanted).float().mean().item()
    scaled = (train - train.mean(0)) / train.std(0), (test - train.mean(0)) / train.std(0)
    reference = LogisticRegression(C=1e6, max_iter=1000).fit(scaled[0].numpy(), labels.numpy())
    assert found == pytest.approx(reference.score(scaled[1].numpy(), wanted.numpy()), abs=0.02)


def test_the_probe_leaves_the_client_as_it_was() -> None:
    method, client = one_client()
    before = {name: t.clone() for name, t in client.state().items()}
    method.evaluate(client, [client.private])
    assert all(torch.equal(before[name], t) for name, t in client.state().items())


def test_a_feature_that_never_moves_does_no_harm() -> None:
    features = torch.cat([torch.randn(6, 2), torch.full((6, 1), 1e4)], dim=1)
    probe = LinearProbe(features, 2)
    assert probe(features).isfinite().all()
    assert probe.mean.shape == (3,)


@pytest.mark.parametrize("k", [1, 4, 100])
def test_nearest_neighbours_against_a_loop(k: int) -> None:
    features, labels = clouds(40)
    h = (features / features.norm(dim=1, keepdim=True)).double().numpy()
    hits = 0
    for i in range(40):
        others = sorted((j for j in range(40) if j != i), key=lambda j: -(h[i] @ h[j]))[:k]
        votes = np.zeros(3)
        for j in others:
            votes[labels[j]] += np.exp(h[i] @ h[j] / 0.07)
        hits += int(votes.argmax() == labels[i])
    assert knn_accuracy(features, labels, 3, k).item() == pytest.approx(100 * hits / 40)
