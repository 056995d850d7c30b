"""FedNTD: distillation from the global model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.helpers import equal, states
from tests.methods.one_client import a_client, a_method
from torch.nn.functional import cross_entropy

from fedchoir import Experiment, run
from fedchoir.core.client import Client
from fedchoir.core.training import EagerTrainer
from fedchoir.methods.fedntd import FedNTD


def test_without_its_term_it_is_fedavg(skew: Callable[..., Experiment]) -> None:
    plain, without, with_it = skew("fedavg", "plain"), skew("fedntd", "without", ntd_weight=0.0), skew("fedntd", "with")
    for experiment in (plain, without, with_it):
        run(experiment)
    assert equal(states(plain)["server"], states(without)["server"])
    assert not equal(states(plain)["server"], states(with_it)["server"])


def test_fedntd_learns_from_the_global_model() -> None:
    """At the first step the client is the global model: nothing to distil, so the loss is cross-entropy."""
    method = a_method(FedNTD, local_epochs=1, local_batch=64)
    client = a_client(method)
    seen: list[tuple[float, float]] = []

    class Spy(EagerTrainer):
        def train(self, client: Client, optimizer: Any, loss: Any, batches: Any) -> torch.Tensor:
            for batch in batches:
                client.model.eval()  # as the teacher is
                z = client.logits(batch.inputs)
                seen.append((loss(client, batch).item(), cross_entropy(z, batch.labels).item()))
            return torch.zeros(())

    client.trainer = Spy()
    method.local_update(client)
    assert seen
    assert all(a == pytest.approx(b, abs=1e-6) for a, b in seen)
