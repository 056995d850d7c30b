"""RHFL: confidence weights, the weighted divergence and the noise-robust loss against NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.methods.public_checks import divergence, drawn, loss_on, predictions, softmax

CNN = ("simple_cnn@4",)
Make = Callable[..., FederationHarness]


def test_confidence_is_the_drop_of_the_local_loss(harness: Make) -> None:
    method = harness("rhfl").method
    assert method.confidence({0: 2.0, 1: 3.0, 2: 4.0}).tolist() == [0.5, 0.5, 0.5]
    now = {0: 1.0, 1: 2.7, 2: 3.0}
    fall = np.array([(2 - 1) / 1, (3 - 2.7) / 2.7, (4 - 3) / 3])
    share = 1 / 2 + 0.5 * fall / fall.sum()  # with the 1/(K − 1) of the paper, which the softmax takes out again
    expected = np.exp(share) / np.exp(share).sum()
    np.testing.assert_allclose(method.confidence(now), expected, rtol=1e-9)
    assert expected.argmax() == 0


def test_confidence_with_rising_losses_new_and_absent_clients(harness: Make) -> None:
    method = harness("rhfl").method
    method.confidence({0: 2.0, 1: 2.0})  # the third did not take part
    weights = method.confidence({0: 3.0, 1: 1.9, 2: 5.0})
    assert weights[1] > weights[2] > weights[0]  # a new client has neither gained nor lost confidence
    assert weights.sum().item() == pytest.approx(1)
    still = method.confidence({0: 3.0, 2: 5.0})
    assert still.tolist() == [0.5, 0.0, 0.5]
    assert method.server["loss"].tolist() == [3.0, 1.9, 5.0]


def test_confidence_can_be_switched_off(harness: Make) -> None:
    method = harness("rhfl", eta=0.0).method
    method.confidence({0: 2.0, 1: 2.0, 2: 2.0})
    np.testing.assert_allclose(method.confidence({0: 1.0, 1: 2.0, 2: 3.0}), 1 / 3)


def test_rhfl_is_the_weighted_divergence_from_every_other_client(harness: Make) -> None:
    s = harness("rhfl")
    s.method.server["confidence"] = torch.tensor([0.2, 0.5, 0.3])
    p = predictions(s)
    received = s.method.pool_of_others(s.share())
    for i in range(3):
        expected = sum(w * divergence(p[k], p[i]).mean() for k, w in enumerate((0.2, 0.5, 0.3)) if k != i)
        assert loss_on(s, i, received[i]) == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_a_client_that_was_left_out_receives_all_the_others(harness: Make) -> None:
    s = harness("rhfl")
    s.method.server["confidence"] = torch.tensor([0.2, 0.5, 0.3])
    aggregated = drawn(s)
    whole, partial = s.method.pool_of_others(aggregated), s.method.pool_of_others({k: aggregated[k] for k in (0, 2)})
    torch.testing.assert_close(partial[1]["pool"], whole[1]["pool"])
    torch.testing.assert_close(partial[0]["pool"], 0.3 * aggregated[2]["logits"].softmax(1))


@pytest.mark.parametrize("noise", ["symmetric", "pair"])
def test_label_noise_changes_labels_and_the_loss_is_robust(noise: str, harness: Make) -> None:
    clean, noisy = harness("rhfl", CNN), harness("rhfl", CNN, label_noise=0.25, noise_type=noise)
    wrong = [
        int((a.private.labels != b.private.labels).sum()) for a, b in zip(clean.clients, noisy.clients, strict=True)
    ]
    assert all(0 < count <= 24 for count in wrong)
    client = noisy.clients[0]
    client.model.eval()
    z, y = client.predict_private().double().numpy(), client.private.labels.numpy()
    p = softmax(z)
    picked = np.arange(len(y)), y
    reverse = -math.log(1e-4) * (1 - p[picked])
    expected = (0.1 * -np.log(p[picked]) + reverse).mean()
    assert noisy.method.share_loss(client).scalars["loss"] == pytest.approx(expected, rel=1e-4)
    assert np.isfinite(list(noisy.run_rounds()[0]["losses"][client.name].values())).all()
