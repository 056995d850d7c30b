"""FedMRL: nested heads on fused features, the averaged small model, and the projector that is kept or not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.helpers import equal, states
from tests.methods.public_checks import softmax

from fedchoir import Experiment, run
from fedchoir.core.training import Batch
from fedchoir.engines.local.state_cache import state_name
from fedchoir.experiments.trained import load_trained
from fedchoir.payload import Payload

Make = Callable[..., FederationHarness]


def modules(s: FederationHarness, name: str) -> list[dict[str, torch.Tensor]]:
    return [{n: t.clone() for n, t in c.modules[name].state_dict().items()} for c in s.clients]


def reference(client: object, images: torch.Tensor, d1: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits of the own and the shared head, from the weights of projector and heads."""
    own, shared, projector = client.model, client.modules["shared_model"], client.modules["projector"]  # type: ignore[attr-defined]
    with torch.no_grad():
        g, f = (m.features(images).double().numpy() for m in (shared, own))
        weights = [t.double().numpy() for m in (projector, own.head, shared.head) for t in (m.weight, m.bias)]
    fused = np.concatenate([g, f], axis=1) @ weights[0].T + weights[1]
    return fused[:, : f.shape[1]] @ weights[2].T + weights[3], fused[:, :d1] @ weights[4].T + weights[5]


@pytest.mark.parametrize("d1", [16, 100])  # narrower and wider than the own features
def test_losses_of_both_heads_on_nested_features(harness: Make, d1: int) -> None:
    s = harness("fedmrl", shared_dim=d1, own_weight=0.7, shared_weight=0.4)
    for client in (s.clients[0], s.clients[1]):
        images, labels = next(client.private_chunks())
        own, shared = reference(client, images, d1)
        picked = np.arange(len(labels)), labels.numpy()
        expected = -0.7 * np.log(softmax(own)[picked]).mean() - 0.4 * np.log(softmax(shared)[picked]).mean()
        assert s.method.local_loss(client, Batch(images, labels)).item() == pytest.approx(expected, rel=1e-4)
        client.model.eval(), client.modules.eval()
        own, _ = reference(client, images, d1)
        np.testing.assert_allclose(s.method.predict(client, images).detach(), own, rtol=1e-3, atol=1e-4)


def test_the_shared_models_start_equal_and_are_averaged(harness: Make) -> None:
    s = harness("fedmrl")
    assert equal(modules(s, "shared_model")[1:], modules(s, "shared_model")[:-1])
    (event,) = s.run_rounds()
    models = modules(s, "shared_model")
    for name in models[0]:
        mean = np.mean([m[name].double().numpy() for m in models], axis=0)  # all clients have as many images
        np.testing.assert_allclose(s.method.server[f"shared_model/{name}"], mean, rtol=1e-5, atol=1e-6)
    assert event["bytes_up"] == 3 * sum(t.nbytes for t in models[0].values())
    received = Payload(s.method.server)
    s.method.download_shared_model(s.clients[0], received)
    assert equal(modules(s, "shared_model")[0], received.under("shared_model"))


def test_the_projector_is_trained_and_kept_or_thrown_away(harness: Make) -> None:
    kept, thrown = harness("fedmrl"), harness("fedmrl", keep_projector=False)
    initial = modules(kept, "projector")
    assert equal(modules(thrown, "projector"), initial)
    for s in (kept, thrown):
        s.run_rounds()
    assert equal(kept.weights(), thrown.weights())  # the first round starts from the same projector
    assert equal(modules(thrown, "projector"), initial)
    assert not equal(modules(kept, "projector"), initial)
    for s in (kept, thrown):
        s.run_rounds()
    assert equal(modules(thrown, "projector"), initial)
    assert not equal(kept.weights(), thrown.weights())


def test_equal_own_models_are_not_averaged_by_default(harness: Make) -> None:
    own = (
        harness("fedmrl", models=("simple_cnn@4",)),
        harness("fedmrl", models=("simple_cnn@4",), average="after-local"),
    )
    for s in own:
        s.run_rounds()
    assert not equal(own[0].weights()[:1], own[0].weights()[1:2])
    assert equal(own[1].weights()[:1], own[1].weights()[1:2])


def test_an_exported_model_predicts_with_its_projector(small: Callable[..., Experiment]) -> None:
    experiment = small("fedmrl", rounds=1)
    run(experiment)
    client = load_trained(experiment.out, "red")
    names = [c.name for c in client.run.clients]
    state = states(experiment)[state_name(names.index("red"))]
    fused = client.predictor[0]
    assert torch.equal(fused.projector.weight, state["modules/projector.weight"])
    inputs = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        plain = client.model(client.preprocessing.transform(inputs)).softmax(dim=1)
    assert not torch.allclose(client.probabilities(inputs), plain, atol=1e-3)
    torch.testing.assert_close(client.probabilities(inputs).sum(dim=1), torch.ones(3))
