"""HeteroFL: the masked loss and the statistics that clients measure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.helpers import equal

from fedchoir.core.training import Batch
from fedchoir.methods.heterofl import measure_statistics

Make = Callable[..., FederationHarness]
WIDTHS = ("resnet10@2", "resnet10@4", "resnet10@3")


def test_logits_of_missing_classes_are_zero_in_the_loss(harness: Make, uneven: Path) -> None:
    s = harness("heterofl", WIDTHS, scenario=uneven)
    s.run_rounds()
    client = s.clients[0]  # it has the classes 1 and 2
    inputs, labels = next(client.private_chunks())
    assert set(labels.tolist()) == {1, 2}
    client.model.eval()
    with torch.no_grad():
        z = client.logits(inputs).double().numpy()
        value = s.method.local_loss(client, Batch(inputs, labels)).item()
    z[:, [0, 3]] = 0
    log_p = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    assert value == pytest.approx(-log_p[np.arange(len(labels)), labels.numpy()].mean(), rel=1e-5)


def test_a_mask_changes_nothing_where_no_class_is_missing(harness: Make, uneven: Path) -> None:
    masked, plain = harness("heterofl", WIDTHS), harness("heterofl", WIDTHS, masked=False)
    skewed, free = (harness("heterofl", WIDTHS, scenario=uneven, masked=on) for on in (True, False))
    for s in (masked, plain, skewed, free):
        s.run_rounds(2)
    assert equal(masked.weights(), plain.weights())
    assert not equal(skewed.weights(), free.weights())


def test_statistics_are_those_of_all_private_samples(harness: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stem's statistics by NumPy: their means over three chunks."""
    s = harness("heterofl", WIDTHS)
    client = s.clients[1]
    chunks = client.private_chunks
    monkeypatch.setattr(client, "private_chunks", lambda: chunks(23))
    batches = [inputs for inputs, _ in chunks(23)]
    assert [len(b) for b in batches] == [23, 23, 2]
    means, variances = [], []
    with torch.no_grad():
        for inputs in batches:
            out = client.model.trunk[0][0](inputs).double().transpose(0, 1).flatten(1).numpy()
            means.append(out.mean(axis=1))
            variances.append(out.var(axis=1, ddof=1))
    before = {n: p.detach().clone() for n, p in client.model.named_parameters()}
    measure_statistics(client)
    norm = client.model.trunk[0][1]
    np.testing.assert_allclose(norm.running_mean, np.mean(means, axis=0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(norm.running_var, np.mean(variances, axis=0), rtol=1e-4, atol=1e-5)
    assert norm.momentum == 0.1
    assert all(torch.equal(p, before[n]) for n, p in client.model.named_parameters())
    first = client.snapshot()
    measure_statistics(client)
    assert equal(first, client.snapshot())  # nothing of earlier statistics is left


def test_a_single_sample_has_no_variance(harness: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    client = harness("heterofl", WIDTHS).clients[0]
    chunks = client.private_chunks
    monkeypatch.setattr(client, "private_chunks", lambda: chunks(47))
    measure_statistics(client)
    assert client.model.trunk[0][1].num_batches_tracked == 1


def test_measured_statistics_are_sent_and_running_ones_are_an_option(harness: Make) -> None:
    s, running = harness("heterofl", WIDTHS), harness("heterofl", WIDTHS, static_batchnorm=False)
    for each in (s, running):
        each.run_rounds()
    name = "trunk.0.1.running_mean"
    for client, state in zip(s.clients, s.weights(), strict=True):
        measure_statistics(client)
        assert torch.equal(client.snapshot()[name], state[name])
    for one, two in zip(s.weights(), running.weights(), strict=True):
        assert torch.equal(one["trunk.0.0.weight"], two["trunk.0.0.weight"])  # training is the same in the first round
        assert not torch.equal(one[name], two[name])
