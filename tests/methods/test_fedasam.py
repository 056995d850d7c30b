"""FedASAM: two passes by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.methods.one_client import State, a_client, a_method, parameters

from fedchoir.core.client import Client
from fedchoir.core.training import Batch
from fedchoir.methods.fedasam import FedASAM
from fedchoir.methods.fedavg import FedAvg


def a_batch() -> Batch:
    torch.manual_seed(5)
    return Batch(torch.randn(8, 3, 16, 16), torch.arange(8) % 4)


def gradients(client: Client, loss: Callable[[Client, Batch], torch.Tensor]) -> State:
    client.model.train().zero_grad()
    loss(client, a_batch()).backward()
    return {n: p.grad.clone() for n, p in client.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("adaptive", [True, False])
def test_fedasam_follows_the_gradient_at_the_worst_weights_nearby(adaptive: bool) -> None:
    """Against the two passes written out: climb, take the gradient, come back."""
    method = a_method(FedASAM, rho=0.3, eta=0.02, adaptive=adaptive)
    client, copy = a_client(method), a_client(method)
    found = gradients(client, method.local_loss)

    first = gradients(copy, FedAvg.local_loss.__get__(method))
    scale = {
        n: p.detach().abs() + 0.02 if adaptive and n.endswith("weight") else torch.ones_like(p)
        for n, p in copy.model.named_parameters()
    }
    length = torch.sqrt(sum(((scale[n] * g) ** 2).sum() for n, g in first.items()))
    with torch.no_grad():
        for n, p in copy.model.named_parameters():
            p += 0.3 * scale[n] ** 2 * first[n] / length
    second = gradients(copy, FedAvg.local_loss.__get__(method))
    for n in second:
        torch.testing.assert_close(found[n], second[n], rtol=1e-3, atol=1e-5)
    before = parameters(a_client(method))
    assert all(torch.equal(before[n], p) for n, p in client.model.named_parameters())  # it came back


def test_fedasam_moves_statistics_once_and_without_radius_is_fedavg() -> None:
    method = a_method(FedASAM, rho=0.0)
    one, two = a_client(method), a_client(method)
    a, b = gradients(one, method.local_loss), gradients(two, FedAvg.local_loss.__get__(method))
    for n in a:
        torch.testing.assert_close(a[n], b[n])
    means = [n for n in one.model.state_dict() if n.endswith(("running_mean", "running_var"))]
    for n in means:
        torch.testing.assert_close(one.model.state_dict()[n], two.model.state_dict()[n])
