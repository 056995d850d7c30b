"""Payloads that are far larger than the others' are left out by name, and a run goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.deploy.in_process import InProcessTransport, run_on_sites
from tests.helpers import events

from fedchoir import Experiment
from fedchoir.core.exchange import Reply
from fedchoir.core.outliers import ALWAYS, FACTOR, HELD, without_outliers
from fedchoir.engines.messages import Envelope
from fedchoir.payload import Payload


def replies(*magnitudes: float) -> list[Reply]:
    return [Reply(k, [Payload(w=torch.tensor([0.1, -size]))]) for k, size in enumerate(magnitudes)]


def passed(*magnitudes: float) -> tuple[list[int], dict[int, str]]:
    left_out: dict[int, str] = {}
    kept = list(without_outliers(replies(*magnitudes), lambda reply, why: left_out.update({reply.client: why})))
    return [reply.client for reply in kept], left_out


def test_one_client_is_far_larger() -> None:
    kept, left_out = passed(1.0, 9e8, 2.0)
    assert kept == [0, 2]
    assert left_out == {1: "w has a number of magnitude 9e+08, and 200 is plausible here"}


def test_of_two_clients_the_smaller_one_counts_and_usual_sizes_always_pass() -> None:
    assert passed(2.0, 1e6)[0] == [0]
    assert passed(1e-9, ALWAYS, ALWAYS)[0] == [0, 1, 2]
    assert passed()[0] == []


@given(st.lists(st.floats(0.01, 50.0), min_size=3, max_size=HELD), st.floats(1e4, 1e9))
def test_a_minority_cannot_leave_an_honest_client_out(honest: list[float], absurd: float) -> None:
    hostile = [absurd] * ((len(honest) - 1) // 2)
    kept, left_out = passed(*honest, *hostile)
    assert kept == list(range(len(honest)))
    assert set(left_out) == set(range(len(honest), len(honest) + len(hostile)))


def test_replies_after_the_first_ones_are_compared_with_them() -> None:
    sizes = [1.0] * HELD + [FACTOR * 1.1, 3.0]
    kept, left_out = passed(*sizes)
    assert set(left_out) == {HELD}
    assert kept == [*range(HELD), HELD + 1]


def test_integers_and_empty_tensors_have_no_magnitude() -> None:
    counts = [Payload(n=torch.tensor([10**12 * k]), none=torch.zeros(0)) for k in range(3)]
    sent = [Reply(k, [payload]) for k, payload in enumerate(counts)]
    assert list(without_outliers(sent, lambda reply, why: pytest.fail(why))) == sent


@pytest.mark.parametrize("value", [1e6, 9e8])
@pytest.mark.parametrize(("name", "models"), [("fedavg", ("resnet10@4",)), ("fbcl", None)])
def test_one_absurd_reply_does_not_end_a_federation(
    name: str, models: Any, value: float, small: Callable[..., Experiment], tmp_path: Path
) -> None:
    """Every tensor of one reply is ``value``: finite, but a mean with it makes every model useless."""
    experiment = small(name, rounds=3, **({"models": models} if models else {}))
    done: list[int] = []

    def attack(transport: InProcessTransport) -> None:
        honest = transport.workers[2].handle

        def handle(text: str, blobs: list[bytes]) -> Envelope:
            reply = honest(text, blobs)
            if not reply.blobs or done:
                return reply
            done.append(1)
            sent = Payload.from_bytes(reply.blobs[0])
            changed = {n: torch.full_like(t, value) if t.is_floating_point() else t for n, t in sent.items()}
            return Envelope(reply.header, [Payload(changed, scalars=sent.scalars).to_bytes(), *reply.blobs[1:]])

        transport.workers[2].handle = handle  # type: ignore[method-assign]

    result, _ = run_on_sites(experiment, tmp_path / "sites", change=attack)
    left_out = [out for event in events(experiment) for out in event["left_out"]]
    assert [out["client"] for out in left_out] == [result.clients[2]["name"]]
    assert "is plausible here" in left_out[0]["why"]
    assert result.intra_avg > 25 + 10
