"""FedGen: the generator's training from the mean head, and the clients' loss on generated features."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.helpers import equal
from tests.methods.public_checks import divergence, softmax

from fedchoir.core.training import Batch
from fedchoir.payload import Payload

Make = Callable[..., FederationHarness]
MODELS = ("simple_cnn@4", "mlp", "simple_cnn@6")


def heads(s: FederationHarness) -> list[dict[str, torch.Tensor]]:
    return [{n: t.clone() for n, t in c.model.head.state_dict().items()} for c in s.clients]


def test_heads_are_averaged_and_equal_at_all_clients_after_a_round(harness: Make) -> None:
    s = harness("fedgen", tested_head="own", generator_steps=0)
    s.run_rounds()
    server, own = Payload(s.method.server).under("head"), heads(s)
    for name, t in server.items():
        mean = np.mean([h[name.removeprefix("head.")].double().numpy() for h in own], axis=0)
        np.testing.assert_allclose(t, mean, rtol=1e-5, atol=1e-6)
    s = harness("fedgen")
    s.run_rounds()
    assert equal(heads(s)[1:], heads(s)[:-1])


def test_labels_are_drawn_as_often_as_all_clients_have_them(harness: Make, uneven: Path) -> None:
    s = harness("fedgen", scenario=uneven)
    s.run_rounds()
    share = s.method.server["share"]
    counts = np.sum([np.bincount(c.private.labels.numpy(), minlength=4) for c in s.clients], axis=0)
    expected = counts / counts.sum()
    np.testing.assert_allclose(share, expected, rtol=1e-5)
    _, labels = s.method.draw(share, 4000, torch.Generator().manual_seed(0))
    shares = np.bincount(labels.numpy(), minlength=4) / 4000
    np.testing.assert_allclose(shares, expected, atol=0.03)
    assert shares[3] == 0


def test_the_generator_learns_features_that_the_mean_head_classifies(harness: Make) -> None:
    s = harness("fedgen", generator_steps=150, generator_lr=0.01, hidden_dim=64)
    g = torch.Generator().manual_seed(1)
    head = {"head.weight": torch.randn(4, 128, generator=g), "head.bias": torch.zeros(4)}
    counts = torch.tensor([5.0, 5.0, 5.0, 0.0])

    def accuracy(made: torch.nn.Module) -> float:
        noise, labels = s.method.draw(counts, 300, torch.Generator().manual_seed(2))
        with torch.no_grad():
            f = made.eval()(noise, torch.eye(4)[labels])
        logits = f.double().numpy() @ head["head.weight"].double().numpy().T
        return float((logits.argmax(axis=1) == labels.numpy()).mean())

    assert accuracy(s.method.new_generator()) < 0.7
    assert accuracy(s.method.train_generator(head, counts, 0)) > 0.95


def test_without_samples_the_generator_stays_as_it_was(harness: Make) -> None:
    s = harness("fedgen")
    head = {"head.weight": torch.zeros(4, 128), "head.bias": torch.zeros(4)}
    unchanged = s.method.train_generator(head, torch.zeros(4), 0).state_dict()
    assert equal(unchanged, s.method.new_generator().state_dict())


def test_a_mean_of_linear_heads_gives_the_mean_of_their_logits() -> None:
    g = torch.Generator().manual_seed(3)
    w, b, f = torch.randn(3, 4, 8, generator=g), torch.randn(3, 4, generator=g), torch.randn(5, 8, generator=g)
    sizes = np.array([1.0, 2.0, 5.0])
    each = np.einsum("kcd,bd->kbc", w.numpy(), f.numpy()) + b.numpy()[:, None]
    mean_w, mean_b = (np.average(t.numpy(), axis=0, weights=sizes) for t in (w, b))
    np.testing.assert_allclose(np.average(each, axis=0, weights=sizes), f.numpy() @ mean_w.T + mean_b, rtol=1e-4)


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_the_clients_loss_has_three_terms(harness: Make, decay: float) -> None:
    s = harness("fedgen", generated_weight=0.6, latent_weight=0.3, generated_decay=decay)
    client = s.clients[0]
    client.begin(2)
    images, labels = next(client.private_chunks())
    g = torch.Generator().manual_seed(4)
    generated, alike = (torch.randn(len(labels), 128, generator=g) for _ in range(2))
    drawn = torch.randint(4, (len(labels),), generator=g)
    batch = Batch(images, labels, {"generated": generated, "alike": alike, "drawn": drawn})
    with torch.no_grad():
        z, on_generated, on_alike = (
            t.double().numpy() for t in (client.logits(images), client.classify(generated), client.classify(alike))
        )
    rows = np.arange(len(labels))
    ce = -np.log(softmax(z)[rows, labels.numpy()]).mean()
    ce_generated = -np.log(softmax(on_generated)[rows, drawn.numpy()]).mean()
    kl = divergence(softmax(on_alike), softmax(z)).mean()
    expected = ce + decay**2 * (0.6 * ce_generated + 0.3 * kl)
    assert s.method.local_loss(client, batch).item() == pytest.approx(expected, rel=1e-4)


def test_without_generated_features_it_is_lg_fedavg(harness: Make) -> None:
    plain, generated, average = (
        harness("fedgen", MODELS, generated_weight=0.0),
        harness("fedgen", MODELS),
        harness("lg-fedavg", MODELS),
    )
    for s in (plain, generated, average):
        s.run_rounds(2)
    assert equal(plain.weights(), average.weights())
    assert not equal(generated.weights(), average.weights())
