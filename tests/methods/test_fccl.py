"""FCCL: two teachers, and the released consensus."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.helpers import equal
from tests.methods.plain_models import PLAIN, Make, after
from torch.nn.functional import cross_entropy

from fedchoir.core.training import Batch
from fedchoir.losses import kd


def test_without_any_term_it_is_solo(harness: Make) -> None:
    bare = after(harness, "fccl", use_fccm=False, inter_weight=0.0, intra_weight=0.0)
    assert equal(bare, after(harness, "solo", pretrain_epochs=2))


def test_fccl_has_a_teacher_from_the_last_round_and_one_from_the_start(
    harness: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = harness("fccl", PLAIN, local_batch=64, inter_weight=2.0, intra_weight=0.5)
    s.run_rounds()
    ends, pretrained = s.weights(), [dict(c.memory["pretrained"]) for c in s.clients]
    seen = []
    loss = type(s.method).local_loss

    def spy(method: Any, client: Any, batch: Batch) -> torch.Tensor:
        z = client.logits(batch.inputs)
        inter, intra = (client.frozen_copy(w[client.index])(batch.inputs) for w in (ends, pretrained))
        value = loss(method, client, batch)
        expected = cross_entropy(z, batch.labels) + 2 * kd(z, inter, 1.0) + 0.5 * kd(z, intra, 1.0)
        torch.testing.assert_close(value, expected, rtol=1e-3, atol=1e-5)
        seen.append(client.index)
        return value

    monkeypatch.setattr(type(s.method), "local_loss", spy)
    s.run_rounds()
    assert seen == [0, 1, 2]
    assert equal(pretrained, [dict(c.memory["pretrained"]) for c in s.clients])


def test_the_released_consensus_holds_the_previous_models_logits(harness: Make) -> None:
    s = harness("fccl", PLAIN, own_logits="previous")
    s.run_rounds()
    client = s.clients[0]
    s.method.store_teacher(client)
    before = client.public_outputs(s.batch())[1]
    s.method.local_update(client)
    now = client.public_outputs(s.batch())[1]
    torch.testing.assert_close(s.method.previous_minus_own(client, s.batch()), before - now, rtol=1e-4, atol=1e-5)
