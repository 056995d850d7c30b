"""FBCL: what it sends, what each module changes, and which models its local phase looks back to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.helpers import equal
from torch.nn.functional import cross_entropy

from fedchoir.core.training import Batch
from fedchoir.losses import cnd, fbm, fia, frr

PLAIN = ("simple_cnn@4", "simple_cnn@6", "simple_cnn@5")  # no BatchNorm and no dropout: eval mode says the same
OFF = {"use_fia": False, "use_fbm": False, "use_cnd": False, "use_frr": False}
Make = Callable[..., FederationHarness]


@pytest.mark.parametrize(("diagonal", "numbers"), [(False, 8 + 8 * 8), (True, 8 + 8)])
def test_an_image_costs_mean_and_covariance_or_variances(diagonal: bool, numbers: int, harness: Make) -> None:
    (event,) = harness("fbcl", PLAIN, diagonal=diagonal).run_rounds()
    assert event["bytes_up"] == event["bytes_down"] == 3 * 4 * 40 * numbers


@pytest.mark.parametrize("diagonal", [False, True])
def test_clients_send_the_gaussian_of_their_mapped_features(diagonal: bool, harness: Make) -> None:
    s = harness("fbcl", diagonal=diagonal)
    aggregated = s.share()
    for client in s.clients:
        branch: Any = client.modules["map"]
        with torch.no_grad(), client.batch_stats_frozen():
            m = client.model.feature_map(client.public_samples(s.batch())).numpy()
        weight, bias = branch.weight.detach().numpy()[:, :, 0, 0], branch.bias.detach().numpy()
        h = np.einsum("dc,bchw->bdhw", weight, m).reshape(16, 8, -1) + bias[:, None]
        np.testing.assert_allclose(aggregated[client.index]["mu"], h.mean(axis=2), atol=1e-4)
        covariance = np.stack([np.cov(image, bias=True) for image in h])
        expected = np.stack([np.diag(c) for c in covariance]) if diagonal else covariance
        np.testing.assert_allclose(aggregated[client.index]["delta"], expected, atol=1e-4)


def test_without_any_module_it_is_solo(harness: Make) -> None:
    bare, alone = harness("fbcl", **OFF), harness("solo")
    events = bare.run_rounds(2)
    alone.run_rounds(2)
    assert equal(bare.weights(), alone.weights())
    assert sum(event["bytes_up"] + event["bytes_down"] for event in events) == 0


@pytest.mark.parametrize(
    ("switch", "weight"), [("use_fbm", "fbm_weight"), ("use_cnd", "cnd_weight"), ("use_frr", "frr_weight")]
)
def test_a_module_that_is_off_weighs_nothing_and_one_that_is_on_does(switch: str, weight: str, harness: Make) -> None:
    off, nothing, on = (harness("fbcl", PLAIN, **change) for change in ({switch: False}, {weight: 0.0}, {}))
    for s in (off, nothing, on):
        s.run_rounds(2)
    assert equal(off.weights(), nothing.weights())
    assert not equal(off.weights(), on.weights())


def test_basic_matrices_alone_need_nobody(harness: Make) -> None:
    alone, without = harness("fbcl", PLAIN, use_fia=False), harness("fbcl", PLAIN, use_fia=False, use_fbm=False)
    (event,) = alone.run_rounds()
    without.run_rounds()
    assert event["bytes_up"] == 0
    assert not equal(alone.weights(), without.weights())


def test_the_public_loss_is_equation_5(harness: Make) -> None:
    s = harness("fbcl", PLAIN)
    aggregated = s.share()
    mu_mean, delta_mean = (torch.stack([p[name] for p in aggregated.values()]).mean(0) for name in ("mu", "delta"))
    client, own = s.clients[0], aggregated[0]
    batch = Batch(client.public_samples(s.batch()), torch.empty(0), {"mu": mu_mean, "delta": delta_mean})
    expected = fia(own["mu"], own["delta"], mu_mean, delta_mean) + 0.05 * fbm(own["mu"])
    torch.testing.assert_close(s.method.public_loss(client, batch).detach(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("teacher", ["previous", "updated"])
def test_the_local_phase_looks_back_to_the_right_models(
    teacher: str, harness: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CND to the last round's end or to after the public phase, FRR to after the public phase; loss as in eq. 9."""
    s = harness("fbcl", PLAIN, teacher=teacher, local_batch=64)
    s.run_rounds()
    ends = s.weights()
    checked = []
    loss = type(s.method).local_loss

    def spy(method: Any, client: Any, batch: Batch) -> torch.Tensor:
        """At the first step the model is still the one that the public phase left."""
        m, _, z = client.stages(batch.inputs)
        mu = client.run_module("map", m).mean(dim=(2, 3)).detach()
        torch.testing.assert_close(batch["mu"], mu, rtol=1e-4, atol=1e-5)
        old = z.detach()
        if teacher == "previous":
            old = client.frozen_copy(ends[client.index])(batch.inputs)
            assert not torch.allclose(old, z)
        torch.testing.assert_close(batch["teacher"], old, rtol=1e-4, atol=1e-5)
        value = loss(method, client, batch)
        ce = cross_entropy(z, batch.labels)
        expected = ce + 3 * cnd(z, old, batch.labels) + 0.1 * frr(mu, mu)
        torch.testing.assert_close(value, expected, rtol=1e-3, atol=1e-5)
        checked.append(client.index)
        return value

    monkeypatch.setattr(type(s.method), "local_loss", spy)
    s.run_rounds()
    assert checked == [0, 1, 2]


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_frr_is_zero_at_the_first_step_with_statistics_of_the_batch(
    mode: str, harness: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the public phase the running statistics are those of the public images, so in eval mode FRR is not 0."""
    s = harness("fbcl", ("resnet10@2", "resnet12@2", "resnet10@4"), teacher_batchnorm=mode, local_batch=8)
    first: dict[int, tuple[float, float]] = {}
    loss = type(s.method).local_loss

    def spy(method: Any, client: Any, batch: Batch) -> torch.Tensor:
        if client.index not in first:
            with torch.no_grad(), client.batch_stats_frozen():
                m = client.stages(batch.inputs)[0]
                mu = client.run_module("map", m).mean(dim=(2, 3))
            old = client.frozen_copy(client.stored_weights("teacher"))
            same = torch.allclose(old(batch.inputs), batch["teacher"], atol=1e-5)
            first[client.index] = frr(mu, batch["mu"]).item(), same
        return loss(method, client, batch)

    monkeypatch.setattr(type(s.method), "local_loss", spy)
    s.run_rounds()
    assert len(first) == 3
    for distance, teacher_in_eval_mode in first.values():
        assert (distance < 1e-10) == (mode == "train")
        assert teacher_in_eval_mode == (mode == "eval")


def test_a_mean_over_entries_lets_fbm_act(harness: Make) -> None:
    """The gradient of λ·FBM relative to that of FIA, of a client's mapping."""

    def ratio(reduction: str) -> float:
        s = harness("fbcl", PLAIN, fia_reduction=reduction, depth=32)
        aggregated = s.share()
        received = {n: torch.stack([p[n] for p in aggregated.values()]).mean(0) for n in ("mu", "delta")}
        client, weight = s.clients[0], s.clients[0].modules["map"].weight
        mu, delta = s.method.gaussian(client, client.public_samples(s.batch()))
        align = fia(mu, delta, received["mu"], received["delta"], reduction)
        sizes = [torch.autograd.grad(x, weight, retain_graph=True)[0].norm() for x in (0.05 * fbm(mu), align)]
        batch = Batch(client.public_samples(s.batch()), torch.empty(0), received)
        torch.testing.assert_close(s.method.public_loss(client, batch), align + 0.05 * fbm(mu))
        return (sizes[0] / sizes[1]).item()

    assert ratio("mean") > 10 * ratio("sum")


def test_the_mapping_learns_and_is_averaged_with_alike_models(harness: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    s = harness("fbcl", ("resnet10@2",), public_size=16, average="after-local")
    before = s.clients[0].modules["map"].weight.detach().clone()
    s.run_rounds()
    maps = [c.modules["map"].state_dict() for c in s.clients]
    assert equal(maps[1:], maps[:-1])
    assert not torch.equal(before, maps[0]["weight"])
    model, part = (sum(t.nbytes for t in state.values()) for state in (s.weights()[0], maps[0]))
    sent = 3 * 4 * 16 * (8 + 8 * 8) + 3 * (model + part)
    again = harness("fbcl", ("resnet10@2",), public_size=16, average="after-local")
    assert again.run_rounds()[0]["bytes_up"] == sent
