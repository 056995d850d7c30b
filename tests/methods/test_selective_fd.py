"""Selective-FD: the clients' selectors, the ensemble of those that are selected, and the server's selector."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.helpers import equal
from tests.methods.public_checks import loss_on, softmax

from fedchoir.core.actions import Step, perform
from fedchoir.core.aggregation import Mean
from fedchoir.methods.density_ratio import density_ratio
from fedchoir.payload import Payload

Make = Callable[..., FederationHarness]


def fitted(harness: Make, **settings: object) -> FederationHarness:
    s = harness("selective-fd", **settings)
    for c in s.clients:
        perform(c, Step(s.method.fit_selector))
    return s


def test_a_selector_accepts_its_share_of_held_out_private_samples(harness: Make) -> None:
    s = fitted(harness, client_quantile=0.25)
    for c in s.clients:
        selector = c.stored_weights("selector")
        assert len(selector["known"]) == 24
        h = c.predict_private("features")
        held_out = torch.stack([x for x in h if not any(torch.equal(x, k) for k in selector["known"])])
        accepted = (density_ratio(selector, held_out) > selector["threshold"]).float().mean()
        assert accepted.item() == pytest.approx(0.75, abs=0.03)


def test_features_far_from_all_private_ones_are_not_familiar(harness: Make) -> None:
    s = fitted(harness)
    for c in s.clients:
        selector = c.stored_weights("selector")
        far = selector["known"] + 1e3
        assert not (density_ratio(selector, far) > selector["threshold"]).any()


def test_ensemble_and_servers_selector_match_the_loops(harness: Make) -> None:
    s = harness("selective-fd", server_threshold=0.8)
    g = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(3, 16, 4, generator=g)
    chosen = (torch.rand(3, 16, generator=g) < 0.5).float()
    mean = Mean()
    for k in range(3):
        p = logits[k].softmax(dim=1)
        mean.add(k, [Payload(probabilities=p * chosen[k].unsqueeze(1), selected=chosen[k])])
    (received,) = s.method.consensus(mean.result())
    counted = 0
    for b in range(16):
        who = [k for k in range(3) if chosen[k, b]]
        if not who:
            assert received["counts"][b] == 0
            continue
        p = np.mean([softmax(logits[k : k + 1, b].double().numpy())[0] for k in who], axis=0)
        distance = np.abs(p - np.eye(4)[p.argmax()]).sum()
        np.testing.assert_allclose(received["label"][b], p, rtol=1e-4, atol=1e-6)
        assert received["counts"][b] == float(distance <= 0.8)
        counted += int(distance <= 0.8)
    assert 0 < counted < 16
    assert not chosen.any(dim=0).all()


def test_hard_labels_are_those_of_the_ensemble(harness: Make) -> None:
    soft, hard = (harness("selective-fd", labels=labels).method for labels in ("soft", "hard"))
    p, share = torch.rand(6, 4).softmax(dim=1) * 0.5, torch.full((6,), 0.5)
    one, two = soft.ensemble(p, share), hard.ensemble(p, share)
    assert torch.equal(two["label"], torch.eye(4)[one["label"].argmax(dim=1)])
    assert torch.equal(one["counts"], two["counts"])


def test_the_loss_is_over_the_samples_that_count(harness: Make) -> None:
    s = harness("selective-fd")
    counts = (torch.arange(16) % 3 == 0).float()
    received = Payload(label=torch.rand(16, 4).softmax(dim=1), counts=counts)
    for c in s.clients:
        z = c.public_outputs(s.batch())[1].double().numpy()
        each = -(received["label"].double().numpy() * np.log(softmax(z))).sum(axis=1)
        assert loss_on(s, c.index, received) == pytest.approx(each[::3].mean(), rel=1e-4)


def test_what_is_not_selected_is_not_sent(harness: Make) -> None:
    s = fitted(harness, client_quantile=0.9)
    for payload in s.share().values():
        selected = payload["selected"]
        assert set(selected.tolist()) <= {0.0, 1.0}
        torch.testing.assert_close(payload["probabilities"].sum(dim=1), selected)


def test_without_selected_samples_clients_learn_alone(harness: Make) -> None:
    models = ("simple_cnn@4", "mlp", "simple_cnn@6")  # without BatchNorm, which public passes would update
    refused, alone = harness("selective-fd", models, server_threshold=0.0), harness("solo", models)
    for s in (refused, alone):
        s.run_rounds()
    assert equal(refused.weights(), alone.weights())
