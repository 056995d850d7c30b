"""FedPFT: mixtures of features, samples of them, and the head that the server trains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.helpers import equal
from tests.methods.one_client import features

from fedchoir.methods.fedpft import fit_mixture
from fedchoir.payload import Payload

Make = Callable[..., FederationHarness]


def test_one_gaussian_has_the_mean_and_the_variance_of_the_features() -> None:
    h = torch.randn(30, 5, generator=torch.Generator().manual_seed(0)) * 2 + 1
    means, variances, weights = fit_mixture(h, 1, seed=0)
    x = h.double().numpy()
    np.testing.assert_allclose(means[0], x.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(variances[0], x.var(axis=0), rtol=1e-3)
    assert weights.tolist() == [1.0]


def test_a_mixture_finds_separate_clusters() -> None:
    g = torch.Generator().manual_seed(1)
    h = torch.cat([torch.randn(40, 3, generator=g), torch.randn(20, 3, generator=g) + 20])
    means, variances, weights = fit_mixture(h, 2, seed=3)
    order = means[:, 0].argsort()
    np.testing.assert_allclose(means[order], [h[:40].mean(dim=0).tolist(), h[40:].mean(dim=0).tolist()], rtol=1e-4)
    np.testing.assert_allclose(weights[order], [2 / 3, 1 / 3], rtol=1e-4)
    assert (variances > 0).all()


def test_fewer_samples_than_gaussians_and_a_single_sample() -> None:
    means, _, weights = fit_mixture(torch.eye(3)[:2], 4, seed=0)
    assert weights[:2].sum().item() == pytest.approx(1)
    assert (weights[2:] == 0).all()
    assert (means[2:] == 0).all()
    for count in (0, 1):
        assert not any(bool(t.any()) for t in fit_mixture(torch.ones(count, 3), 2, seed=0))


def test_clients_send_a_gaussian_of_each_of_their_classes(harness: Make, uneven: Path) -> None:
    s = harness("fedpft", scenario=uneven)
    s.run_rounds()
    for c in s.clients:
        h, y = features(c), c.private.labels.numpy()
        payload = s.method.share_mixtures(c)
        assert payload["counts"].tolist() == np.bincount(y, minlength=4).tolist()
        for k in range(4):
            own = h[y == k]
            expected = (own.mean(axis=0), own.var(axis=0)) if len(own) else (np.zeros(128), np.zeros(128))
            np.testing.assert_allclose(payload["means"][k, 0], expected[0], rtol=1e-3, atol=1e-4)
            np.testing.assert_allclose(payload["variances"][k, 0], expected[1], rtol=1e-2, atol=1e-4)


def mixtures(count: int = 2) -> dict[int, Payload]:
    """Two clients with two Gaussians for each of four classes; client 1 lacks class 3."""
    g = torch.Generator().manual_seed(5)
    found = {}
    for k, counts in enumerate(([10.0, 20.0, 10.0, 8.0], [6.0, 24.0, 18.0, 0.0])):
        weights = torch.tensor([0.75, 0.25]).expand(4, 2)[:, :count]
        means, variances = 5 * torch.randn(4, count, 128, generator=g), torch.rand(4, count, 128, generator=g)
        found[k] = Payload(means=means, variances=variances, weights=weights, counts=torch.tensor(counts))
    return found


def test_samples_come_from_the_mixtures_in_proportion(harness: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    s = harness("fedpft", mixtures=2)
    large = tuple(type(c)(c.name, c.model, 4000, c.test, c.domain) for c in s.spec.clients)
    monkeypatch.setattr(s.method, "spec", type(s.spec)(s.spec.classes, large, 4, 0, inputs=s.spec.inputs))
    payloads = mixtures()
    rows, classes = s.method.sampled(payloads, 0)
    assert rows.shape == (8000, 128)
    centres = {(k, c, m): p["means"][c, m] for k, p in payloads.items() for c in range(4) for m in range(2)}
    nearest = torch.cdist(rows, torch.stack(list(centres.values()))).argmin(dim=1).numpy()
    for number, (k, c, m) in enumerate(centres):
        counts = payloads[k]["counts"].numpy()
        share = 0.5 * counts[c] / counts.sum() * (0.75, 0.25)[m]
        chosen = nearest == number
        assert chosen.mean() == pytest.approx(share, abs=0.015)
        assert (classes.numpy()[chosen] == c).all()
    one = rows[nearest == 2].double().numpy()  # client 0, class 1, its first Gaussian
    np.testing.assert_allclose(one.mean(axis=0), payloads[0]["means"][1, 0], atol=0.15)
    np.testing.assert_allclose(one.var(axis=0), payloads[0]["variances"][1, 0], atol=0.2)


def test_without_samples_nothing_is_trained_and_absurd_counts_do_not_count(harness: Make) -> None:
    s = harness("fedpft", mixtures=2)
    zeros = {k: Payload({n: torch.zeros_like(t) for n, t in p.items()}) for k, p in mixtures().items()}
    rows, classes = s.method.sampled(zeros, 0)
    assert rows.shape == (0, 128)
    assert len(classes) == 0
    huge = mixtures()
    huge[1] = Payload({**huge[1], "counts": torch.full((4,), 1e9), "variances": -huge[1]["variances"]})
    rows, _ = s.method.sampled(huge, 0)
    assert len(rows) == 96  # what both clients have
    assert rows.isfinite().all()


def test_the_head_classifies_what_the_server_sampled(harness: Make) -> None:
    s = harness("fedpft", server_epochs=60)
    rows, classes = s.method.sampled(mixtures(1), 0)
    head = s.method.trained_head(s.spec.round(0, s.method.params), rows, classes).under("head")
    logits = rows.double().numpy() @ head["head.weight"].double().numpy().T + head["head.bias"].double().numpy()
    assert (logits.argmax(axis=1) == classes.numpy()).mean() > 0.95


def test_all_clients_have_the_same_head_after_a_round(harness: Make) -> None:
    s = harness("fedpft")
    (event,) = s.run_rounds()
    found = [c.model.head.state_dict() for c in s.clients]
    assert equal(found[1:], found[:-1])
    assert equal(found[0], {n.removeprefix("head/head."): t for n, t in s.method.server.items()})
    assert event["bytes_up"] == 3 * 4 * (4 * 2 * 128 + 4 + 4)


def test_one_frozen_extractor_gives_one_global_model(harness: Make) -> None:
    """The paper's setting: equal extractors that nobody trains; a round ends with the same model everywhere."""
    s = harness("fedpft", models=("resnet10@4[train=head]",), feature_dim=0)
    s.run_rounds()
    assert equal(s.weights()[1:], s.weights()[:-1])
