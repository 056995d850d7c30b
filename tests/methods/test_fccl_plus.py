"""FCCL+: every switch of the local phase changes what it should and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.helpers import equal
from tests.methods.plain_models import PLAIN, Make, after
from torch.nn.functional import cross_entropy

from fedchoir.core.training import Batch
from fedchoir.losses import fntd, fntd_cap
from fedchoir.methods.fccl_plus import FCCLPlus
from fedchoir.utils.errors import UsageError


def test_without_any_module_it_is_solo(harness: Make) -> None:
    bare = after(harness, use_fccm=False, use_fisl=False, regulariser="none")
    assert equal(bare, after(harness, "solo"))


def test_equivalent_options_give_equal_weights(harness: Make) -> None:
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
            "ewc of batches": {"regulariser": "ewc", "fisher": "batch"},
            "ewc of nothing": {"regulariser": "ewc", "ewc_weight": 0.0},
            "none": {"regulariser": "none"},
            "dual": {"regulariser": "dual"},
            "updated": {"teacher": "updated"},
            "no tau squared": {"tau_squared": False},
            "smoothing": {"regulariser": "label-smoothing", "temperature": 2.0},
        }.items()
    }
    equivalent = {("fntd", "no kd"), ("kd", "all kd"), ("ewc of nothing", "none")}
    for i, one in enumerate(results):
        for two in list(results)[i + 1 :]:
            expected = (one, two) in equivalent or (two, one) in equivalent
            assert equal(results[one], results[two]) == expected, (one, two)


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
        z = client.logits(batch.inputs)
        old = client.frozen_copy(ends[client.index])(batch.inputs) if teacher == "previous" else z.detach()
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


def test_two_classes_use_the_renormalised_form(harness: Make) -> None:
    """With two classes the masked form would prefer the wrong class (`tests/losses/test_distillation.py`)."""
    s = harness("fccl+", PLAIN, fntd_form="masked")
    client = s.clients[0]
    z, teacher = torch.randn(2, 5, 2)
    client.logits = lambda inputs: z  # type: ignore[method-assign]
    batch = Batch(torch.zeros(5, 1), torch.tensor([0, 1, 0, 1, 1]), {"teacher": teacher})
    expected = cross_entropy(z, batch.labels) + fntd(z, teacher, batch.labels, 3.0, "renormalised")
    torch.testing.assert_close(s.method.fntd_loss(client, batch), expected)


def test_kd_and_fntd_share_one_optimiser(harness: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Table 17: where both losses are the same function, a change from one to the other changes nothing, so Adam's
    moments go on."""
    loss = FCCLPlus.fntd_loss
    monkeypatch.setattr(FCCLPlus, "kd_loss", lambda *args: loss(*args))
    whole, halves = (after(harness, local_epochs=2, kd_share=share) for share in (0.0, 0.5))
    assert equal(whole, halves)


def test_label_smoothing_has_fntds_optimum(harness: Make) -> None:
    s = harness("fccl+", PLAIN, regulariser="label-smoothing", temperature=2.0)
    client, classes = s.clients[0], len(s.spec.classes)
    z, labels = torch.randn(5, classes, dtype=torch.float64), torch.tensor([0, 1, 0, 1, 1])
    client.logits = lambda inputs: z  # type: ignore[method-assign]
    epsilon = (1 - fntd_cap(0.86, classes, 2.0)) * classes / (classes - 1)
    target = torch.full_like(z, epsilon / classes)
    target[range(5), labels] += 1 - epsilon
    expected = -(target * z.log_softmax(dim=1)).sum(dim=1).mean()
    torch.testing.assert_close(s.method.smoothed_loss(client, Batch(torch.zeros(5, 1), labels)), expected)


def test_label_smoothing_is_refused_where_fntd_prefers_a_wrong_class(harness: Make) -> None:
    with pytest.raises(UsageError, match="label-smoothing"):
        harness("fccl+", PLAIN, regulariser="label-smoothing", temperature=30.0)
