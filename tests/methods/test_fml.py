"""FML: mutual distillation with a small shared model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.helpers import equal

from fedchoir import Experiment, run
from fedchoir.core.training import Batch
from fedchoir.utils.errors import UsageError

Make = Callable[..., FederationHarness]


def test_memes_have_equal_initial_weights(harness: Make) -> None:
    memes = [c.modules["meme"].state_dict() for c in harness("fml").clients]
    assert equal(memes[1:], memes[:-1])


def test_memes_are_averaged_and_sent_back(harness: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    s = harness("fml", meme="resnet10@2")  # with buffers
    (event,) = s.run_rounds()
    memes = [c.modules["meme"].state_dict() for c in s.clients]
    for name, tensor in memes[0].items():
        mean = sum(m[name].double() for m in memes) / 3  # all clients have as many images
        kept = s.method.server[f"meme/{name}"].double()
        torch.testing.assert_close(kept, mean.round() if "num_batches" in name else mean, rtol=1e-5, atol=1e-6)
        assert not torch.equal(memes[0][name], memes[1][name]) or "num_batches" in name, tensor
    size = sum(t.nbytes for t in memes[0].values())
    assert (event["bytes_up"], event["bytes_down"]) == (3 * size, 0)
    merged = dict(s.method.server)
    starts = []
    local_update = type(s.method).local_update

    def spy(method: object, client: object) -> None:
        starts.append({f"meme/{n}": t.clone() for n, t in client.modules["meme"].state_dict().items()})  # type: ignore[attr-defined]
        local_update(method, client)

    monkeypatch.setattr(type(s.method), "local_update", spy)
    (event,) = s.run_rounds()
    assert event["bytes_down"] == 3 * size
    assert equal(starts, [merged] * 3)


def test_the_loss_is_two_losses_with_fixed_teachers(harness: Make) -> None:
    s = harness("fml", own_share=0.3, shared_share=0.8)
    client = s.clients[0]
    images, labels = next(client.private_chunks())
    with torch.no_grad():
        own, meme = client.logits(images).double(), client.run_module("meme", images).double()
    p, q = own.softmax(1).numpy(), meme.softmax(1).numpy()
    picked = np.arange(len(labels)), labels.numpy()
    ce_own, ce_meme = -np.log(p[picked]).mean(), -np.log(q[picked]).mean()
    to_meme, to_own = (q * np.log(q / p)).sum(1).mean(), (p * np.log(p / q)).sum(1).mean()
    value = s.method.local_loss(client, Batch(images, labels))
    assert value.item() == pytest.approx(0.3 * ce_own + 0.7 * to_meme + 0.8 * ce_meme + 0.2 * to_own, rel=1e-4)
    value.backward()
    onehot = np.eye(4)[labels.numpy()]
    gradient = (0.3 * (p - onehot) + 0.7 * (p - q)).mean(axis=0)  # nothing from the meme's loss
    np.testing.assert_allclose(client.model.head.bias.grad, gradient, atol=1e-5)


def test_without_distillation_the_own_model_learns_alone(harness: Make) -> None:
    models = ("simple_cnn@4", "mlp", "simple_cnn@6")
    apart, alone, together = harness("fml", models, own_share=1.0), harness("solo", models), harness("fml", models)
    for s in (apart, alone, together):
        s.run_rounds(2)
    assert equal(apart.weights(), alone.weights())
    assert not equal(together.weights(), alone.weights())


def test_an_unknown_shared_model_is_refused(small: Callable[..., Experiment]) -> None:
    experiment = small("fml", settings={"meme": "simple_cn"})
    with pytest.raises(UsageError, match="unknown model 'simple_cn'; did you mean simple_cnn"):
        run(experiment)
    assert not experiment.out.exists()
