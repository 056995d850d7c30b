"""Fed-ET: the confidence-weighted label, and the consensus of the clients that disagree with it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.helpers import equal
from tests.methods.public_checks import drawn, loss_on, softmax

from fedchoir.payload import Payload

Make = Callable[..., FederationHarness]


def reference(logits: np.ndarray) -> tuple[np.ndarray, list[np.ndarray | None]]:
    """Labels, and the consensus of those who disagree (None where nobody does), by loops."""
    clients, size, _ = logits.shape
    labels, diverse = [], []
    for b in range(size):
        variances = [np.var(logits[k, b]) for k in range(clients)]
        label = int(np.argmax(sum(v * logits[k, b] for k, v in enumerate(variances))))
        others = [k for k in range(clients) if np.argmax(logits[k, b]) != label]
        weight = sum(variances[k] for k in others)
        labels.append(label)
        diverse.append(sum(variances[k] * logits[k, b] for k in others) / weight if others else None)
    return np.array(labels), diverse


def received(s: FederationHarness, payloads: dict[int, Payload]) -> Payload:
    (consensus,) = s.method.consensus([payloads])
    assert isinstance(consensus, Payload)
    return consensus


def test_label_and_diverse_consensus_match_the_loops(harness: Make) -> None:
    s = harness("fedet")
    common = drawn(s, seed=1)[0]["logits"]
    payloads = {k: Payload(logits=common + payload["logits"]) for k, payload in drawn(s, scale=1.5).items()}
    consensus = received(s, payloads)
    labels, diverse = reference(np.stack([p["logits"].double().numpy() for p in payloads.values()]))
    np.testing.assert_array_equal(consensus["label"], labels)
    assert consensus["exists"].tolist() == [float(d is not None) for d in diverse]
    assert 0 < sum(d is None for d in diverse) < 16  # both cases occur
    for b, d in enumerate(diverse):
        np.testing.assert_allclose(consensus["diverse"][b], np.zeros(4) if d is None else d, rtol=1e-4, atol=1e-5)


def test_the_loss_is_ce_and_the_weighted_divergence(harness: Make) -> None:
    s = harness("fedet", diversity=0.3, temperature=2.0)
    consensus = received(s, drawn(s))
    for c in s.clients:
        z = c.public_outputs(s.batch())[1].double().numpy()
        ce = -np.log(softmax(z)[np.arange(16), consensus["label"].numpy()]).mean()
        p, q = softmax(consensus["diverse"].double().numpy() / 2), softmax(z / 2)
        kl = ((p * np.log(p / q)).sum(axis=1) * consensus["exists"].numpy()).mean()
        assert loss_on(s, c.index, consensus) == pytest.approx(ce + 0.3 * kl, rel=1e-4)


def test_where_all_agree_nothing_is_diverse(harness: Make) -> None:
    s = harness("fedet")
    one = drawn(s)[0]
    consensus = received(s, dict.fromkeys(range(3), one))
    assert not consensus["exists"].any()
    assert torch.equal(consensus["label"], one["logits"].argmax(dim=1))


def test_payloads_of_zeros_are_aggregated(harness: Make) -> None:
    s = harness("fedet")
    zeros = received(s, {k: Payload(logits=torch.zeros(16, 4)) for k in range(3)})
    assert all(bool(t.isfinite().all()) for t in zeros.values())


def test_the_diversity_term_changes_the_models_alone(harness: Make) -> None:
    with_term, without = harness("fedet", diversity=1.0), harness("fedet", diversity=0.0)
    (one,), (two,) = with_term.run_rounds(), without.run_rounds()
    assert (one["bytes_up"], one["bytes_down"]) == (two["bytes_up"], two["bytes_down"])
    assert not equal(with_term.weights(), without.weights())
