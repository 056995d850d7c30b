"""The diagonal Fisher information against loops over samples and over batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.methods.one_client import a_client, a_method
from torch import nn
from torch.nn.functional import cross_entropy

from fedchoir.core.client import Client
from fedchoir.methods import fisher
from fedchoir.methods.fedavg import FedAvg
from fedchoir.methods.fisher import diagonal_fisher
from fedchoir.models import build
from fedchoir.utils.input_spec import InputSpec


def by_loop(client: Client, size: int) -> dict[str, torch.Tensor]:
    """Mean over the samples of the squared gradient of their chunk."""
    model = client.model.eval()
    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for inputs, labels in client.private_chunks(size):
        model.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        for name, p in model.named_parameters():
            assert p.grad is not None
            expected[name] += p.grad.square() * len(labels) / len(client.private)
    return expected


@pytest.mark.parametrize(("form", "size"), [("sample", 1), ("batch", 8)])
def test_it_is_the_mean_squared_gradient(form: fisher.FisherForm, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    client = a_client(a_method(FedAvg, local_batch=8))  # 12 samples: batches of 8 and 4
    expected = by_loop(client, size)
    numbers = sum(p.numel() for p in client.model.parameters())
    for budget in (fisher.GRADIENTS, 5 * numbers):  # the second: chunks of 5 samples
        monkeypatch.setattr(fisher, "GRADIENTS", budget)
        found = diagonal_fisher(client, client.snapshot(), form)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-7)
    assert any(value.any() for value in expected.values())


def test_a_linear_model_in_numpy() -> None:
    """∂ log p_y / ∂W = (onehot(y) − p) xᵀ, in float64."""
    model = nn.Linear(3, 4).double()
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(9, 3)), np.arange(9) % 4
    z = x @ model.weight.detach().numpy().T + model.bias.detach().numpy()
    error = np.eye(4)[y] - np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    found = fisher.of_samples(model)(torch.from_numpy(x), torch.from_numpy(y))  # type: ignore[arg-type]
    assert found["weight"].numpy() == pytest.approx(np.square(error[:, :, None] * x[:, None, :]).sum(axis=0), rel=1e-5)
    assert found["bias"].numpy() == pytest.approx(np.square(error).sum(axis=0), rel=1e-5)


def test_gradients_of_batches_cancel_out() -> None:
    """Near the optimum the form "batch" is smaller by about the size of the batch."""
    client = a_client(a_method(FedAvg, local_batch=12, local_epochs=40, optimizer="adam", local_lr=1e-3))
    client.train(FedAvg.supervised_loss.__get__(a_method(FedAvg)))
    totals = {form: sum(v.sum() for v in diagonal_fisher(client, client.snapshot(), form).values()) for form in FORMS}
    assert totals["sample"] / totals["batch"] > 2


def test_layers_that_vmap_does_not_know_are_computed_sample_by_sample() -> None:
    spec = InputSpec(modality="series", shape=(3, 16))
    torch.manual_seed(0)
    model = build("gru", 4, spec).eval()
    x, y = torch.randn(3, 3, 16), torch.tensor([0, 1, 2])
    expected = [
        torch.autograd.grad(cross_entropy(model(x[i : i + 1]), y[i : i + 1]), list(model.parameters())) for i in y
    ]
    found = fisher.of_samples(model)(x, y)
    for number, value in enumerate(found.values()):
        torch.testing.assert_close(value, sum(g[number].square() for g in expected))


FORMS: tuple[fisher.FisherForm, ...] = ("sample", "batch")
