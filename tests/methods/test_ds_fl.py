"""DS-FL: the entropy reduction of mean probabilities, and the distillation to it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.federation_harness import FederationHarness
from tests.helpers import equal
from tests.methods.public_checks import loss_on, softmax

from fedchoir.core.aggregation import Mean
from fedchoir.payload import Payload

Make = Callable[..., FederationHarness]


def consensus(s: FederationHarness) -> Payload:
    mean = Mean()
    for k, payload in s.share().items():
        mean.add(k, [payload])
    (received,) = s.method.consensus(mean.result())
    assert isinstance(received, Payload)
    return received


def outputs(s: FederationHarness) -> dict[int, np.ndarray]:
    """Every client's logits on the first public batch."""
    return {c.index: c.public_outputs(s.batch())[1].double().numpy() for c in s.clients}


def test_clients_send_probabilities_and_receive_their_sharpened_mean(harness: Make) -> None:
    s = harness("ds-fl", temperature=0.2)
    z = outputs(s)
    for k, payload in s.share().items():
        np.testing.assert_allclose(payload["probabilities"], softmax(z[k]), rtol=1e-5)
    expected = softmax(np.mean([softmax(logits) for logits in z.values()], axis=0) / 0.2)
    np.testing.assert_allclose(consensus(s)["label"], expected, rtol=1e-4)


def test_the_loss_is_cross_entropy_to_the_soft_label(harness: Make) -> None:
    s = harness("ds-fl")
    z, received = outputs(s), consensus(s)
    for k, logits in z.items():
        expected = -(received["label"].double().numpy() * np.log(softmax(logits))).sum(axis=1).mean()
        assert loss_on(s, k, received) == pytest.approx(expected, rel=1e-4)


def test_the_plain_mean_is_of_probabilities_and_not_sharpened(harness: Make) -> None:
    s = harness("ds-fl", aggregation="mean")
    expected = np.mean([softmax(logits) for logits in outputs(s).values()], axis=0)
    np.testing.assert_allclose(consensus(s)["label"], expected, rtol=1e-4)


def test_the_temperature_changes_what_clients_learn_and_not_what_they_send(harness: Make) -> None:
    sharp, flat = harness("ds-fl", temperature=0.05), harness("ds-fl", temperature=1.0)
    assert equal(dict(sharp.share()[0]), dict(flat.share()[0]))
    (one,), (two,) = sharp.run_rounds(), flat.run_rounds()
    assert one["bytes_up"] == two["bytes_up"] == 3 * 40 * 4 * 4
    assert not equal(sharp.weights(), flat.weights())
