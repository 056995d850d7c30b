"""FCCL+, FCCL and solo: every switch changes what it should and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.federation_harness import FederationHarness
from tests.helpers import equal
from torch.nn.functional import cross_entropy

from fedchoir.core.training import Batch
from fedchoir.losses import fccm, fisl, fntd, instance_similarity, kd

PLAIN = ("simple_cnn@4", "simple_cnn@6", "mlp")  # no BatchNorm and no dropout: eval and training mode say the same
Make = Callable[..., FederationHarness]


def after(make: Make, method: str = "fccl+", rounds: int = 2, **settings: Any) -> list[dict[str, torch.Tensor]]:
    """The clients' weights after some rounds."""
    s = make(method, PLAIN, **settings)
    s.run_rounds(rounds)
    return s.weights()


# -- the public phase --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("switches", "numbers"),
    [
        ({}, lambda b: b * 4 + b * (b - 1)),
        ({"use_fisl": False}, lambda b: b * 4),
        ({"use_fccm": False}, lambda b: b * (b - 1)),
        ({"use_fccm": False, "use_fisl": False}, lambda b: 0),
    ],
)
def test_a_batch_costs_what_the_modules_compare(
    switches: dict[str, Any], numbers: Callable[[int], int], harness: Make
) -> None:
    """Tables 2 and 4: |B|·C + |B|·(|B| − 1) numbers a client and batch up, and as many down."""
    (event,) = harness("fccl+", PLAIN, **switches).run_rounds()
    expected = 3 * 4 * sum(numbers(b) for b in (16, 16, 8))
    assert event["bytes_up"] == event["bytes_down"] == expected


def test_the_public_loss_is_equation_6(harness: Make) -> None:
    for switches in ({}, {"use_fisl": False}, {"use_fccm": False}):
        s = harness("fccl+", PLAIN, omega=2.0, off_diagonal=0.1, **switches)
        client = s.clients[0]
        h, z = client.features_and_logits(client.public_samples(s.batch()))
        g = torch.Generator().manual_seed(0)
        targets = {"logits": torch.randn(16, 4, generator=g), "similarity": torch.randn(16, 15, generator=g)}
        parts = {"use_fccm": fccm(z, targets["logits"], 0.1)}
        parts["use_fisl"] = 2 * fisl(instance_similarity(h, 0.02), targets["similarity"])
        expected = sum(part for name, part in parts.items() if switches.get(name, True))
        value = s.method.public_loss(client, Batch(client.public_samples(s.batch()), torch.empty(0), targets))
        torch.testing.assert_close(value, expected)


def test_fisl_off_is_a_weight_of_nothing(harness: Make) -> None:
    off, nothing, on = (after(harness, **change) for change in ({"use_fisl": False}, {"omega": 0.0}, {}))
    assert equal(off, nothing)
    assert not equal(off, on)


def test_without_any_module_it_is_solo(harness: Make) -> None:
    bare = after(harness, use_fccm=False, use_fisl=False, regulariser="none")
    assert equal(bare, after(harness, "solo"))
    assert equal(
        after(harness, "fccl", use_fccm=False, inter_weight=0.0, intra_weight=0.0),
        after(harness, "solo", pretrain_epochs=2),
    )


# -- the local phase ---------------------------------------------------------------------------------------------------


def test_equal_ways_to_say_the_same(harness: Make) -> None:
    """KD is the whole share of KD; EWC without weight is no regulariser; each real choice differs from the others."""
    results = {
        name: after(harness, local_epochs=2, **change)
        for name, change in {
            "fntd": {},
            "no kd": {"kd_share": 0.0},
            "renormalised": {"fntd_form": "renormalised"},
            "half kd": {"kd_share": 0.5},
            "kd": {"regulariser": "kd"},
            "all kd": {"kd_share": 1.0},
            "ewc": {"regulariser": "ewc"},
            "ewc of nothing": {"regulariser": "ewc", "ewc_weight": 0.0},
            "none": {"regulariser": "none"},
            "dual": {"regulariser": "dual"},
            "updated": {"teacher": "updated"},
        }.items()
    }
    twins = {("fntd", "no kd"), ("kd", "all kd"), ("ewc of nothing", "none")}
    for i, one in enumerate(results):
        for two in list(results)[i + 1 :]:
            alike = (one, two) in twins or (two, one) in twins
            assert equal(results[one], results[two]) == alike, (one, two)


@pytest.mark.parametrize(("share", "expected"), [(0.0, "ffff"), (0.25, "kfff"), (0.5, "kkff"), (1.0, "kkkk")])
def test_kd_comes_first_and_takes_its_share_of_the_epochs(
    share: float, expected: str, harness: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = harness("fccl+", PLAIN, local_epochs=4, kd_share=share, local_batch=64)
    order: list[str] = []
    for name in ("kd_loss", "fntd_loss"):
        loss = getattr(type(s.method), name)
        monkeypatch.setattr(
            type(s.method), name, lambda m, c, b, loss=loss, tag=name[0]: (order.append(tag), loss(m, c, b))[1]
        )
    s.run_rounds()
    assert "".join(order) == 3 * expected


@pytest.mark.parametrize("teacher", ["previous", "updated"])
@pytest.mark.parametrize("form", ["masked", "renormalised"])
def test_the_teacher_is_the_model_that_the_option_names(
    teacher: str, form: str, harness: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = harness("fccl+", PLAIN, teacher=teacher, fntd_form=form, temperature=2.0, local_batch=64)
    s.run_rounds()
    ends = s.weights()
    seen = []
    original = type(s.method).fntd_loss

    def spy(method: Any, client: Any, batch: Batch) -> torch.Tensor:
        z = client.logits(batch.images)
        old = client.frozen_copy(ends[client.index])(batch.images) if teacher == "previous" else z.detach()
        torch.testing.assert_close(batch["teacher"], old, rtol=1e-4, atol=1e-5)
        value = original(method, client, batch)
        expected = cross_entropy(z, batch.labels) + fntd(z, old, batch.labels, 2.0, form)
        torch.testing.assert_close(value, expected, rtol=1e-3, atol=1e-5)
        seen.append(client.index)
        return value

    monkeypatch.setattr(type(s.method), "fntd_loss", spy)
    s.run_rounds()
    assert seen == [0, 1, 2]


def test_ewc_keeps_the_weights_that_mattered(harness: Make) -> None:
    def drift(weight: float) -> float:
        s = harness(
            "fccl+", PLAIN, regulariser="ewc", ewc_weight=weight, use_fccm=False, use_fisl=False, local_epochs=5
        )
        s.run_rounds()
        before = s.weights()
        s.run_rounds()
        fishers: list[Any] = [c.memory["fisher"] for c in s.clients]
        return sum(
            (f[n] * (w[n] - b[n]).square()).sum().item()
            for f, w, b in zip(fishers, s.weights(), before, strict=True)
            for n in f
        )

    assert drift(1e5) < 0.5 * drift(0.0)


# -- FCCL --------------------------------------------------------------------------------------------------------------


def test_fccl_has_a_teacher_from_the_last_round_and_one_from_the_start(
    harness: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = harness("fccl", PLAIN, local_batch=64, inter_weight=2.0, intra_weight=0.5)
    s.run_rounds()
    ends, pretrained = s.weights(), [dict(c.memory["intra"]) for c in s.clients]
    seen = []
    loss = type(s.method).local_loss

    def spy(method: Any, client: Any, batch: Batch) -> torch.Tensor:
        z = client.logits(batch.images)
        inter, intra = (client.frozen_copy(w[client.index])(batch.images) for w in (ends, pretrained))
        value = loss(method, client, batch)
        expected = cross_entropy(z, batch.labels) + 2 * kd(z, inter, 1.0) + 0.5 * kd(z, intra, 1.0)
        torch.testing.assert_close(value, expected, rtol=1e-3, atol=1e-5)
        seen.append(client.index)
        return value

    monkeypatch.setattr(type(s.method), "local_loss", spy)
    s.run_rounds()
    assert seen == [0, 1, 2]
    assert equal(pretrained, [dict(c.memory["intra"]) for c in s.clients])


def test_the_released_consensus_holds_the_previous_models_logits(harness: Make) -> None:
    s = harness("fccl", PLAIN, own_logits="previous")
    s.run_rounds()
    client = s.clients[0]
    s.method.remember(client)
    before = client.public_outputs(s.batch())[1]
    s.method.local_update(client)
    now = client.public_outputs(s.batch())[1]
    torch.testing.assert_close(s.method.previous_minus_own(client, s.batch()), before - now, rtol=1e-4, atol=1e-5)


# -- solo --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epochs", "rounds"), [(50, 40), (7, 3), (2, 5), (12, 4)])
def test_solo_spreads_its_epochs_evenly_over_the_rounds(epochs: int, rounds: int, harness: Make) -> None:
    s = harness("solo", PLAIN, rounds=rounds, epochs=epochs)
    client = s.clients[0]
    shares = []
    for index in range(rounds):
        client.begin(index)
        shares.append(s.method.epochs_in(client))
    assert sum(shares) == epochs
    assert max(shares) - min(shares) <= 1


def test_solo_trains_as_others_do_by_default_and_sends_nothing(harness: Make) -> None:
    s = harness("solo", PLAIN, local_epochs="3,1,2")
    assert [s.method.epochs_in(c) for c in s.clients] == [3, 1, 2]
    (event,) = s.run_rounds()
    assert event["bytes_up"] == event["bytes_down"] == 0
