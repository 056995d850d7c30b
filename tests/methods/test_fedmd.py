"""FedMD's public loss against NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.methods.public_checks import loss_on

from fedchoir.payload import Payload


def test_the_loss_is_the_l1_distance_to_the_mean_logits(harness: Callable[..., FederationHarness]) -> None:
    s = harness("fedmd")
    logits = {k: payload["logits"].double().numpy() for k, payload in s.share().items()}
    mean = np.mean(list(logits.values()), axis=0)
    value = loss_on(s, 1, Payload(logits=torch.from_numpy(mean).float()))
    assert value == pytest.approx(np.abs(logits[1] - mean).mean(), rel=1e-3)
