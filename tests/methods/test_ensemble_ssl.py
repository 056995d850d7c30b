"""Ensemble distillation of features: the public loss, and the earlier name."""

from __future__ import annotations

import torch
from tests.methods.ssl.one_client import one_client

from fedchoir import methods
from fedchoir.core.training import Batch
from fedchoir.losses import kd


def test_the_loss_is_the_divergence_from_the_mean_features() -> None:
    method, client = one_client("ensemble-ssl")
    client.model.eval()
    images = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    mean = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    value = method.public_loss(client, Batch(images, torch.empty(0), {"features": mean}))
    z = client.modules["calibration"](client.model.features(images))
    torch.testing.assert_close(value, kd(z, mean, 1.0))
    assert method.public_loss(client, Batch(images, torch.empty(0), {"features": z})).item() == 0


def test_the_earlier_name_is_accepted_and_not_listed() -> None:
    assert methods.get("feddf-ssl") is methods.get("ensemble-ssl")
    assert "feddf-ssl" not in methods.registry()
