"""RCFL: the consensus per label against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.methods.public_checks import divergence, loss_on, softmax

from fedchoir.core.training import Batch
from fedchoir.payload import Payload

CNN = ("simple_cnn@4",)
Make = Callable[..., FederationHarness]


def test_the_consensus_on_a_label_is_its_owners(harness: Make, uneven: Path) -> None:
    s = harness("rcfl", scenario=uneven)
    accuracy, owned, logits = {}, {}, {}
    for c in s.clients:
        s.method.compute_weights(c)
        c.model.eval()
        with torch.no_grad():
            right = [c.logits(images).argmax(1) == labels for images, labels in c.private_chunks()]
        accuracy[c.index] = torch.cat(right).float().mean().item()
        owned[c.index] = set(c.private.labels.tolist())
        logits[c.index] = c.public_outputs(s.batch())[1].numpy()
    aggregated = s.share()
    aggregator = s.method.aggregator()
    for k, payload in aggregated.items():
        aggregator.add(k, [payload])
    (received,) = s.method.consensus(aggregator.result())
    assert received["owned"].tolist() == [True, True, True, False]
    for label in range(3):
        owners = [k for k in logits if label in owned[k]]
        total = sum(max(accuracy[k], 1e-6) for k in owners)
        expected = sum(max(accuracy[k], 1e-6) / total * logits[k][:, label] for k in owners)
        np.testing.assert_allclose(received["logits"][:, label], expected, rtol=1e-4, atol=1e-5)


def test_a_label_of_nobody_takes_no_part(harness: Make) -> None:
    s = harness("rcfl", CNN)
    client = s.clients[0]
    z = client.public_outputs(s.batch())[1].double().numpy()[:, :3]
    target = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
    received = Payload(logits=target, owned=torch.tensor([True, True, True, False]))
    expected = divergence(softmax(target[:, :3].double().numpy()), softmax(z)).mean()
    assert loss_on(s, 0, received) == pytest.approx(expected, rel=1e-4)
    s.method.public_loss(client, Batch(client.public_samples(s.batch()), torch.empty(0), dict(received))).backward()
    gradient: Any = client.model.head.bias.grad
    assert gradient[3] == 0
    assert gradient[:3].abs().sum() > 0
