"""FedDC: drift and gradient estimates by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.methods.one_client import a_client, a_method, parameters
from torch.nn.functional import cross_entropy

from fedchoir import Experiment, run
from fedchoir.core.client import Client
from fedchoir.core.training import EagerTrainer
from fedchoir.methods.feddc import FedDC
from fedchoir.payload import Payload
from fedchoir.utils.errors import UsageError


def test_feddc_refuses_adam(skew: Callable[..., Experiment]) -> None:
    with pytest.raises(UsageError, match=r"optimizer = 'adam' is not possible: it should be 'sgd'"):
        run(skew("feddc", optimizer="adam"))


def test_feddc_follows_its_drift_and_its_gradients() -> None:
    """Two rounds of one client by hand: the loss it steps on, the drift, the gradient estimate, what it sends."""
    method = a_method(FedDC, alpha=0.3, local_epochs=1)
    client = a_client(method)
    w = parameters(client)
    client.phase = "practise"
    method.local_update(client)
    step_length = 0.05 * client.steps_per_epoch()
    drift = {n: parameters(client)[n] - w[n] for n in w}
    own = {n: -t / step_length for n, t in drift.items()}
    sent = method.upload(client)
    for n in w:
        torch.testing.assert_close(client.stored_weights("drift")[n], drift[n])
        torch.testing.assert_close(client.stored_weights("gradient")[n], own[n])
        torch.testing.assert_close(sent[f"weights/{n}"], w[n] + 2 * drift[n])
        torch.testing.assert_close(sent[f"gradient/{n}"], own[n])
    mean_gradient = {n: torch.full_like(t, 0.01) for n, t in w.items()}
    state = client.snapshot()
    received = {f"weights/{n}": t for n, t in state.items()} | {f"gradient/{n}": t for n, t in mean_gradient.items()}
    method.download(client, Payload(received))
    losses: list[tuple[torch.Tensor, torch.Tensor]] = []

    class Spy(EagerTrainer):
        def train(self, client: Client, optimizer: Any, loss: Any, batches: Any) -> torch.Tensor:
            for p in client.model.parameters():
                p.data += 0.1
            batch = next(iter(batches))
            value = loss(client, batch)
            theta = dict(client.model.named_parameters())
            expected = cross_entropy(client.logits(batch.inputs), batch.labels)
            for n in theta:
                expected = expected + 0.15 * (drift[n] + theta[n] - state[n]).square().sum()
                expected = expected + (theta[n] * (mean_gradient[n] - own[n])).sum()
            losses.append((value, expected))
            return value.detach()

    client.trainer = Spy()
    method.local_update(client)
    torch.testing.assert_close(*losses[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(client.stored_weights("drift")["head.bias"], drift["head.bias"] + 0.1)
