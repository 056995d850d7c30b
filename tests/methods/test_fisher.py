"""The diagonal Fisher information against a loop over batches."""

from __future__ import annotations

import torch
from tests.methods.one_client import a_client, a_method
from torch.nn.functional import cross_entropy

from fedchoir.methods.fedavg import FedAvg
from fedchoir.methods.fisher import diagonal_fisher


def test_it_is_the_mean_squared_gradient_of_the_batches() -> None:
    method = a_method(FedAvg, local_batch=8)
    client = a_client(method)  # 12 samples: batches of 8 and 4
    weights = client.snapshot()
    found = diagonal_fisher(client, weights)
    model = client.model.eval()
    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for images, labels in client.private_chunks(8):
        model.zero_grad()
        cross_entropy(model(images), labels).backward()
        for name, p in model.named_parameters():
            expected[name] += p.grad.square() * len(labels) / 12
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-7)
    assert any(value.any() for value in found.values())
