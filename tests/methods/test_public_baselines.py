"""RHFL, FedMatch, RCFL, FedMD and FedDF: consensus and losses against loops; averaging where models are alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.helpers import equal

from fedchoir.core.training import Batch
from fedchoir.payload import Payload

CNN = ("simple_cnn@4",)
Make = Callable[..., FederationHarness]


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


# -- FedMD and FedDF ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedmd", "feddf"])
def test_the_distance_to_the_mean_of_all_logits(method: str, harness: Make) -> None:
    s = harness(method)
    logits = {k: aggregated["logits"].double().numpy() for k, aggregated in s.share().items()}
    mean = np.mean(list(logits.values()), axis=0)
    value = loss_on(s, 1, Payload(logits=torch.from_numpy(mean).float()))
    if method == "fedmd":
        expected = np.abs(logits[1] - mean).mean()
    else:
        expected = divergence(softmax(mean), softmax(logits[1])).mean()
    assert value == pytest.approx(expected, rel=1e-3)


# -- averaging ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("average", ["before-local", "after-local", "never"])
@pytest.mark.parametrize("method", ["fedmd", "fccl+", "fbcl", "rcfl", "rhfl", "fedmatch", "fml"])
def test_alike_models_are_averaged_when_the_option_says(
    method: str, average: str, harness: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights and BatchNorm's buffers are equal at all clients from averaging on, until clients practise."""
    s = harness(method, ("resnet10@2",), average=average, public_size=16, local_batch=48)
    s.run_rounds()
    ends = s.weights()
    assert any("running_mean" in name for name in ends[0])
    assert equal(ends[1:], ends[:-1]) == (average == "after-local")
    starts = []
    local_update = type(s.method).local_update
    monkeypatch.setattr(
        type(s.method), "local_update", lambda m, c: (starts.append(c.snapshot()), local_update(m, c))[1]
    )
    s.run_rounds()
    if average != "after-local":  # then clients entered the round alike, and only what they hear parts them
        assert equal(starts[1:], starts[:-1]) == (average == "before-local")


def test_different_models_are_never_averaged(harness: Make) -> None:
    (event,) = harness("fedmd", average="after-local").run_rounds()
    assert event["bytes_up"] == 3 * 4 * 40 * 4


# -- RHFL --------------------------------------------------------------------------------------------------------------


def test_confidence_is_the_fall_of_the_local_loss(harness: Make) -> None:
    method = harness("rhfl").method
    assert method.confidence({0: 2.0, 1: 3.0, 2: 4.0}).tolist() == [0.5, 0.5, 0.5]
    now = {0: 1.0, 1: 2.7, 2: 3.0}
    fall = np.array([(2 - 1) / 1, (3 - 2.7) / 2.7, (4 - 3) / 3])
    share = 1 / 2 + 0.5 * fall / fall.sum()  # with the 1/(K − 1) of the paper, which the softmax takes out again
    expected = np.exp(share) / np.exp(share).sum()
    np.testing.assert_allclose(method.confidence(now), expected, rtol=1e-9)
    assert expected.argmax() == 0


def test_confidence_stands_rising_losses_newcomers_and_silence(harness: Make) -> None:
    method = harness("rhfl").method
    method.confidence({0: 2.0, 1: 2.0})  # the third did not take part
    weights = method.confidence({0: 3.0, 1: 1.9, 2: 5.0})
    assert weights[1] > weights[2] > weights[0]  # a newcomer has neither gained nor lost confidence
    assert weights.sum().item() == pytest.approx(1)
    still = method.confidence({0: 3.0, 2: 5.0})
    assert still.tolist() == [0.5, 0.0, 0.5]
    assert method.server["loss"].tolist() == [3.0, 1.9, 5.0]


def test_confidence_can_be_switched_off(harness: Make) -> None:
    method = harness("rhfl", eta=0.0).method
    method.confidence({0: 2.0, 1: 2.0, 2: 2.0})
    np.testing.assert_allclose(method.confidence({0: 1.0, 1: 2.0, 2: 3.0}), 1 / 3)


def test_rhfl_is_the_weighted_divergence_from_every_other_client(harness: Make) -> None:
    s = harness("rhfl")
    s.method.server["confidence"] = torch.tensor([0.2, 0.5, 0.3])
    p = predictions(s)
    received = s.method.of_the_others(s.share())
    for i in range(3):
        expected = sum(w * divergence(p[k], p[i]).mean() for k, w in enumerate((0.2, 0.5, 0.3)) if k != i)
        assert loss_on(s, i, received[i]) == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_a_client_that_was_left_out_hears_all_the_others(harness: Make) -> None:
    s = harness("rhfl")
    s.method.server["confidence"] = torch.tensor([0.2, 0.5, 0.3])
    aggregated = drawn(s)
    whole, partial = s.method.of_the_others(aggregated), s.method.of_the_others({k: aggregated[k] for k in (0, 2)})
    torch.testing.assert_close(partial[1]["pool"], whole[1]["pool"])
    torch.testing.assert_close(partial[0]["pool"], 0.3 * aggregated[2]["logits"].softmax(1))


@pytest.mark.parametrize("noise", ["symmetric", "pair"])
def test_label_noise_reaches_the_labels_and_the_loss_is_noise_tolerant(noise: str, harness: Make) -> None:
    clean, noisy = harness("rhfl", CNN), harness("rhfl", CNN, label_noise=0.25, noise_type=noise)
    wrong = [
        int((a.private.labels != b.private.labels).sum()) for a, b in zip(clean.clients, noisy.clients, strict=True)
    ]
    assert all(0 < count <= 24 for count in wrong)
    client = noisy.clients[0]
    client.model.eval()
    z, y = client.predict_private().double().numpy(), client.private.labels.numpy()
    p = softmax(z)
    picked = np.arange(len(y)), y
    reverse = -math.log(1e-4) * (1 - p[picked])
    expected = (0.1 * -np.log(p[picked]) + reverse).mean()
    assert noisy.method.admit(client).scalars["loss"] == pytest.approx(expected, rel=1e-4)
    assert np.isfinite(list(noisy.run_rounds()[0]["losses"][client.name].values())).all()


# -- FedMatch ----------------------------------------------------------------------------------------------------------


def test_helpers_are_the_nearest_and_count_where_they_are_confident(harness: Make) -> None:
    s = harness("fedmatch", helpers=1, confidence=0.75)
    aggregated = drawn(s)
    p = {k: softmax(v["logits"].double().numpy()) for k, v in aggregated.items()}
    received = s.method.of_the_helpers(aggregated)
    own = predictions(s)
    for i in range(3):
        helper = min((k for k in range(3) if k != i), key=lambda k: ((p[k] - p[i]) ** 2).sum())
        counted = p[helper].max(axis=1) >= 0.75
        assert 0 < counted.sum() < 16
        expected = (divergence(p[helper], own[i]) * counted).mean()
        assert loss_on(s, i, received[i]) == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_more_helpers_than_clients_are_all_the_others(harness: Make) -> None:
    s = harness("fedmatch", helpers=9, confidence=0.0)
    aggregated = drawn(s)
    received = s.method.of_the_helpers(aggregated)
    others = (aggregated[1]["logits"].softmax(1) + aggregated[2]["logits"].softmax(1)) / 2
    torch.testing.assert_close(received[0]["pool"], others)
    alone = s.method.of_the_helpers({1: aggregated[1]})
    assert not any(payload[name].any() for payload in alone.values() for name in payload)


def test_without_a_confident_helper_nothing_is_learned(harness: Make) -> None:
    """The public phase then moves BatchNorm's statistics alone; these models have none."""
    models = ("simple_cnn@4", "mlp", "simple_cnn@6")
    quiet, alone = harness("fedmatch", models, confidence=1.0), harness("solo", models)
    quiet.run_rounds(), alone.run_rounds()
    assert equal(quiet.weights(), alone.weights())


# -- RCFL --------------------------------------------------------------------------------------------------------------


def test_the_consensus_on_a_label_is_its_owners(harness: Make, uneven: Path) -> None:
    s = harness("rcfl", scenario=uneven)
    accuracy, owned, logits = {}, {}, {}
    for c in s.clients:
        s.method.assess(c)
        c.model.eval()
        with torch.no_grad():
            right = [c.logits(images).argmax(1) == labels for images, labels in c.private_chunks()]
        accuracy[c.index] = torch.cat(right).float().mean().item()
        owned[c.index] = set(c.private.labels.tolist())
        logits[c.index] = c.public_outputs(s.batch())[1].numpy()
    aggregated = s.share()
    aggregator = s.method.aggregator()
    for k, payload in aggregated.items():
        aggregator.add(k, [payload])
    (received,) = s.method.consensus(aggregator.result())
    assert received["owned"].tolist() == [True, True, True, False]
    for label in range(3):
        owners = [k for k in logits if label in owned[k]]
        total = sum(max(accuracy[k], 1e-6) for k in owners)
        expected = sum(max(accuracy[k], 1e-6) / total * logits[k][:, label] for k in owners)
        np.testing.assert_allclose(received["logits"][:, label], expected, rtol=1e-4, atol=1e-5)


def test_a_label_of_nobody_takes_no_part(harness: Make) -> None:
    s = harness("rcfl", CNN)
    client = s.clients[0]
    z = client.public_outputs(s.batch())[1].double().numpy()[:, :3]
    target = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
    received = Payload(logits=target, owned=torch.tensor([True, True, True, False]))
    expected = divergence(softmax(target[:, :3].double().numpy()), softmax(z)).mean()
    assert loss_on(s, 0, received) == pytest.approx(expected, rel=1e-4)
    s.method.public_loss(client, Batch(client.public_samples(s.batch()), torch.empty(0), dict(received))).backward()
    gradient: Any = client.model.head.bias.grad
    assert gradient[3] == 0
    assert gradient[:3].abs().sum() > 0


def test_unequal_class_sets_break_nothing(harness: Make, uneven: Path) -> None:
    for method in ("rcfl", "rhfl", "fedmatch", "fbcl"):
        s = harness(method, ("simple_cnn@4", "mlp"), scenario=uneven, rounds=2)
        events = s.run_rounds(2)
        assert not any(e["left_out"] for e in events), method
        assert all(t.isfinite().all() for weights in s.weights() for t in weights.values()), method


@pytest.mark.parametrize("method", ["rcfl", "rhfl", "fedmatch", "fbcl", "fedmd"])
def test_one_exchange_a_pass_carries_as_much(method: str, harness: Make) -> None:
    """With sync = epoch every client hears of all batches at once, each its own."""
    (by_batch,), (by_epoch,) = (
        harness(method, CNN, sync=sync, average="never").run_rounds() for sync in ("batch", "epoch")
    )
    assert by_epoch["messages"] < by_batch["messages"]
    for key in ("bytes_up", "bytes_down"):
        assert by_epoch[key] == by_batch[key] > 0
