"""NumPy references and payloads for the tests of public methods."""

from __future__ import annotations

import numpy as np
import torch
from tests.federation_harness import FederationHarness

from fedchoir.core.training import Batch
from fedchoir.payload import Payload


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def divergence(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """KL(p ‖ q) of each row."""
    return (p * np.log(p / q)).sum(axis=1)


def predictions(s: FederationHarness) -> dict[int, np.ndarray]:
    return {k: softmax(aggregated["logits"].double().numpy()) for k, aggregated in s.share().items()}


def drawn(s: FederationHarness, scale: float = 3.0, seed: int = 0) -> dict[int, Payload]:
    """Logits as decided as those of trained models."""
    g = torch.Generator().manual_seed(seed)
    return {c.index: Payload(logits=scale * torch.randn(16, 4, generator=g)) for c in s.clients}


def loss_on(s: FederationHarness, k: int, received: Payload) -> float:
    """The public loss of client k on the first public batch, by the pass that it learns from."""
    client = s.clients[k]
    client.model.train()
    return s.method.public_loss(client, Batch(client.public_samples(s.batch()), torch.empty(0), dict(received))).item()
