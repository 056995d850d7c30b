"""MOON, FedProc, FedRS, FedProx and FedAvg: what each adds to averaging, and that it adds nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.helpers import equal

from fedchoir.core.client import Client
from fedchoir.core.exchange import Reply
from fedchoir.core.training import Batch
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.payload import Payload

CNN = ("simple_cnn@4",)
BATCHNORM = ("resnet10@4",)
Make = Callable[..., FederationHarness]


def features(client: Client) -> np.ndarray:
    """Features of all private images in eval mode, by hand."""
    pixels = client.private.images.float() / 255
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (client.private.mean, client.private.std))
    client.model.eval()
    with torch.no_grad():
        return client.model.features((pixels - mean) / std).numpy()


# -- averaging ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_fedavg_averages_weights_and_buffers(weighting: str, harness: Make, uneven: Path) -> None:
    s = harness("fedavg", BATCHNORM, weighting=weighting, scenario=uneven)
    s.run_rounds()
    parts = s.weights()
    sizes = [len(c.private) for c in s.clients]
    assert len(set(sizes)) > 1
    shares = np.array(sizes if weighting == "size" else [1, 1, 1]) / sum(sizes if weighting == "size" else [1, 1, 1])
    merged = s.method.global_weights()
    assert any("running_mean" in name for name in merged)
    for name, tensor in merged.items():
        expected = sum(w * part[name].double() for w, part in zip(shares, parts, strict=True))
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor.double(), expected, rtol=1e-5, atol=1e-6)
        else:
            assert tensor.item() == round(expected.item())


def test_a_round_starts_from_the_global_model(harness: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    s = harness("fedavg", BATCHNORM)
    s.run_rounds()
    merged = s.method.global_weights()
    starts = []
    local_update = type(s.method).local_update
    monkeypatch.setattr(
        type(s.method), "local_update", lambda m, c: (starts.append(c.snapshot()), local_update(m, c))[1]
    )
    s.run_rounds()
    assert equal(starts, [merged] * 3)


def test_tested_may_be_what_clients_make_of_the_global_model(harness: Make) -> None:
    tests = {tested: harness("fedavg", BATCHNORM, eval_model=tested, local_lr=0.05) for tested in ("global", "own")}
    one, own = (s.run_rounds(2)[-1] for s in tests.values())
    assert one["losses"] == own["losses"]  # what is tested changes nothing in what is learnt
    assert one["accuracy"][0] == one["accuracy"][1] == one["accuracy"][2]
    s = tests["own"]
    assert not equal(s.weights(), s.weights()[1:] + s.weights()[:1])
    assert own["accuracy"] == [s.method.evaluate(c, s.engine._tests) for c in s.clients]
    assert s.engine.evaluate(dict(Payload(s.method.server).under("weights"))) == one["accuracy"]


@pytest.mark.parametrize(
    ("method", "off"),
    [("fedprox", {"mu": 0.0}), ("moon", {"mu": 0.0}), ("fedproc", {"alpha": 0.0}), ("fedrs", {"alpha": 1.0})],
)
def test_without_its_term_a_method_is_fedavg(method: str, off: dict[str, Any], harness: Make, uneven: Path) -> None:
    plain, switched, on = (
        harness(name, CNN, scenario=uneven, **settings)
        for name, settings in (("fedavg", {}), (method, off), (method, {}))
    )
    for s in (plain, switched, on):
        s.run_rounds(2)
    assert equal(plain.weights(), switched.weights())
    assert not equal(plain.weights(), on.weights())


@pytest.mark.parametrize("method", ["moon", "fedproc", "fedrs", "fedprox"])
def test_classes_that_a_client_or_everyone_lacks_break_nothing(method: str, harness: Make, uneven: Path) -> None:
    s = harness(method, CNN, rounds=3, scenario=uneven, fraction=0.67)
    events = s.run_rounds(3)
    assert all(np.isfinite(list(e["losses"][c].values())).all() for e in events for c in e["clients"])
    assert all(t.isfinite().all() for weights in s.weights() for t in weights.values())
    assert not any(e["left_out"] for e in events)


def test_fedprox_holds_the_weights_near_the_global_ones(harness: Make) -> None:
    def distance(mu: float) -> float:
        s = harness("fedprox", CNN, mu=mu)
        s.run_rounds()
        start = s.method.architecture.state_dict()
        return sum((w[n] - start[n]).square().sum().item() for w in s.weights() for n in start)

    assert distance(100.0) < 0.5 * distance(0.0)


# -- MOON --------------------------------------------------------------------------------------------------------------


def test_moon_compares_with_the_global_and_the_clients_own_last_model(
    harness: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = harness("moon", CNN, local_batch=64)  # one batch holds all private images
    s.run_rounds()
    previous = [features(c) for c in s.clients]
    seen: dict[int, Batch] = {}
    loss = type(s.method).local_loss
    monkeypatch.setattr(type(s.method), "local_loss", lambda m, c, b: (seen.setdefault(c.index, b), loss(m, c, b))[1])
    merged = s.method.global_weights()
    s.run_rounds()
    for client in s.clients:
        client.model.load_state_dict(merged)
        batch = seen[client.index]
        order = [
            int((batch["h_global"][i] - torch.from_numpy(features(client))).abs().sum(1).argmin()) for i in range(48)
        ]
        assert sorted(order) == list(range(48))
        np.testing.assert_allclose(batch["h_global"], features(client)[order], atol=1e-5)
        np.testing.assert_allclose(batch["h_previous"], previous[client.index][order], atol=1e-5)


def test_moon_starts_with_cross_entropy_alone(harness: Make) -> None:
    one, two = harness("moon"), harness("fedavg")
    assert one.run_rounds()[0]["losses"] == two.run_rounds()[0]["losses"]
    assert equal(one.weights(), two.weights())


# -- FedProc -----------------------------------------------------------------------------------------------------------


def test_global_prototypes_are_means_over_the_clients_that_have_the_class(harness: Make, uneven: Path) -> None:
    s = harness("fedproc", scenario=uneven)
    s.run_rounds()
    local = {}
    for c in s.clients:
        h, y = features(c), c.private.labels.numpy()
        local[c.index] = {k: h[y == k].mean(axis=0) for k in set(y.tolist())}
    s.run_rounds()
    for c in s.clients:
        kept, present = c.memory["prototypes"], c.memory["present"]
        assert present.tolist() == [True, True, True, False]
        for k in range(3):
            owners = [u[k] for u in local.values() if k in u]
            np.testing.assert_allclose(kept[k], np.mean(owners, axis=0), rtol=1e-4, atol=1e-5)


def test_the_contrast_fades(harness: Make) -> None:
    falling, fixed = harness("fedproc", rounds=4), harness("fedproc", alpha=0.5)
    client = falling.clients[0]
    alphas = []
    for index in range(4):
        client.begin(index)
        alphas.append(falling.method.alpha(client))
    assert alphas == [1.0, 0.75, 0.5, 0.25]
    assert fixed.method.alpha(client) == 0.5


def test_prototypes_of_another_width_are_left_out(harness: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    s = harness("fedproc")
    ask = LocalEngine.execute

    def wide(self: LocalEngine, *arguments: Any) -> Any:
        for reply in ask(self, *arguments):
            if reply.client == 0 and reply.payloads:
                payload = Payload({**reply.payloads[0], "prototypes": torch.zeros(4, 999)})
                yield Reply(0, [payload], reply.report)
            else:
                yield reply

    monkeypatch.setattr(LocalEngine, "execute", wide)
    (event,) = s.run_rounds()
    assert [out["client"] for out in event["left_out"]] == [s.clients[0].name]
    assert "declared as C d = (4, 32)" in event["left_out"][0]["why"]


# -- FedRS -------------------------------------------------------------------------------------------------------------


def test_fedrs_scales_the_logits_of_missing_classes(harness: Make, uneven: Path) -> None:
    s = harness("fedrs", CNN, scenario=uneven, alpha=0.25)
    client = s.clients[[c.name for c in s.clients].index("green")]
    client.memory["owned"] = client.class_counts() > 0
    assert client.class_counts().tolist() == [0, 12, 12, 0]
    images, labels = next(client.private_chunks())
    z = client.logits(images)
    value = s.method.local_loss(client, Batch(images, labels))
    rows = z.detach().numpy().astype(float) * np.array([0.25, 1, 1, 0.25])
    logs = [row[y] - np.log(np.exp(row).sum()) for row, y in zip(rows, labels.tolist(), strict=True)]
    assert value.item() == pytest.approx(-np.mean(logs), rel=1e-5)


def test_fedrs_with_every_class_is_fedavg(harness: Make) -> None:
    one, two = harness("fedrs"), harness("fedavg")
    one.run_rounds(2), two.run_rounds(2)
    assert equal(one.weights(), two.weights())
