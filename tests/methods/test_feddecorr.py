"""FedDecorr: the decorrelation term of the local loss."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.helpers import equal, states
from tests.methods.one_client import a_client, a_method
from torch.nn.functional import cross_entropy

from fedchoir import Experiment, run
from fedchoir.core.training import Batch
from fedchoir.losses import decorrelation
from fedchoir.methods.feddecorr import FedDecorr


def test_without_its_term_it_is_fedavg(skew: Callable[..., Experiment]) -> None:
    off = {"decorrelation_weight": 0.0}
    plain, without, with_it = skew("fedavg", "plain"), skew("feddecorr", "without", **off), skew("feddecorr", "with")
    for experiment in (plain, without, with_it):
        run(experiment)
    assert equal(states(plain)["server"], states(without)["server"])
    assert not equal(states(plain)["server"], states(with_it)["server"])


@pytest.mark.parametrize("scale", ["paper", "official"])
def test_the_loss_adds_the_weighted_decorrelation(scale: str) -> None:
    method = a_method(FedDecorr, decorrelation_weight=0.5, scale=scale)
    client = a_client(method)
    client.model.eval()
    images, labels = next(client.private_chunks())
    h, z = client.features_and_logits(images)
    expected = cross_entropy(z, labels) + 0.5 * decorrelation(h, scale)
    torch.testing.assert_close(method.local_loss(client, Batch(images, labels)), expected)
