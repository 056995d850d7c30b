"""FedRS: the restricted softmax."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.federation_harness import FederationHarness
from tests.helpers import equal

from fedchoir.core.training import Batch

CNN = ("simple_cnn@4",)
Make = Callable[..., FederationHarness]


def test_fedrs_scales_the_logits_of_missing_classes(harness: Make, uneven: Path) -> None:
    s = harness("fedrs", CNN, scenario=uneven, alpha=0.25)
    client = s.clients[[c.name for c in s.clients].index("green")]
    client.memory["owned"] = client.class_counts() > 0
    assert client.class_counts().tolist() == [0, 12, 12, 0]
    images, labels = next(client.private_chunks())
    z = client.logits(images)
    value = s.method.local_loss(client, Batch(images, labels))
    rows = z.detach().numpy().astype(float) * np.array([0.25, 1, 1, 0.25])
    logs = [row[y] - np.log(np.exp(row).sum()) for row, y in zip(rows, labels.tolist(), strict=True)]
    assert value.item() == pytest.approx(-np.mean(logs), rel=1e-5)


def test_fedrs_with_every_class_is_fedavg(harness: Make) -> None:
    one, two = harness("fedrs"), harness("fedavg")
    one.run_rounds(2), two.run_rounds(2)
    assert equal(one.weights(), two.weights())
