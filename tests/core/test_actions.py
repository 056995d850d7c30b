"""Rounds, steps and exchanges, and how one action runs at one client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.core.example_client import make_client
from tests.federation_harness import FederationHarness

from fedchoir import Experiment, methods
from fedchoir.core.actions import (
    STREAMS,
    Exchange,
    PublicBatch,
    Round,
    Step,
    perform,
    received_by,
    received_bytes,
    stream_of,
)
from fedchoir.core.client import Client
from fedchoir.methods import fccl_public_phase
from fedchoir.payload import Payload, PayloadError, declared_by, sends


def test_public_batches_cover_the_set_once_per_pass() -> None:
    r = Round(index=3, rounds=5, clients=(0,), public_size=10, public_batch=4, public_epochs=2)
    groups = list(r.public_batches())
    assert [g[0].size for g in groups] == [4, 4, 2, 4, 4, 2]
    assert all(len(g) == 1 for g in groups)
    whole = list(Round(3, 5, (0,), 10, 4, sync="epoch").public_batches())
    assert [[b.size for b in g] for g in whole] == [[4, 4, 2]]
    assert [b.size for (b,) in Round(0, 1, (0,), 10, 4, drop_last=True).public_batches()] == [4, 4]
    assert [b.size for (b,) in Round(0, 1, (0,), 9, 4).public_batches()] == [4, 4]  # one image cannot be normalised
    assert [b.size for (b,) in Round(0, 1, (0,), 3, 512, drop_last=True).public_batches()] == [3]


def test_each_client_receives_its_own_payload() -> None:
    one, other = Payload(x=torch.ones(2)), Payload(x=torch.ones(4))
    assert received_by(one, 5, 0) is one
    assert received_by([one, other], 5, 1) is other
    assert received_by({5: other}, 5, 0) is other
    assert received_by({5: other}, 4, 0) is None
    per_client = [{5: one}, {5: other, 4: one}]  # one for each client and batch
    assert (received_by(per_client, 5, 1), received_by(per_client, 4, 0)) == (other, None)
    assert [received_bytes(per_client, k) for k in (5, 4, 3)] == [24, 8, 0]
    assert [received_bytes(h, 5) for h in (None, one, [one, other], {5: other}, {4: one})] == [0, 8, 24, 16, 0]


# -- random streams ----------------------------------------------------------------------------------------------------

FROZEN = {
    "local_update": "practise",
    "public_update": "listen",
    "public_update_alone": "listen_alone",
    "share": "speak",
}
OWN = {  # of single methods, with their default options
    "fccl+": {"share": "speak"},
    "fednova": {"upload_update": "contribute"},
    "fml": {"upload_meme": "send"},
    "rhfl": {"share_loss": "admit"},
}


def test_stream_names_are_frozen() -> None:
    """Every random draw of a client is derived from the stream name of its action, and every kept number from these
    draws. A new name, also a better one, changes all results: so this list changes only together with them."""
    assert STREAMS == FROZEN


@pytest.mark.parametrize("name", OWN)
def test_streams_of_single_methods_are_frozen(name: str, small: Callable[..., Experiment]) -> None:
    method = FederationHarness(small(name)).method
    assert {function: stream_of(getattr(method, function)) for function in OWN[name]} == OWN[name]


@pytest.mark.parametrize(
    ("options", "stream"),
    [({}, "speak"), ({"use_fisl": False}, "speak_logits"), ({"use_fccm": False}, "speak_similarity")],
)
def test_the_stream_of_fccl_plus_depends_on_what_it_sends(
    options: dict[str, bool], stream: str, small: Callable[..., Experiment]
) -> None:
    """Three functions became one with a computed declaration; each kept its stream."""
    assert stream_of(FederationHarness(small("fccl+", settings=options)).method.share) == stream


def test_other_functions_have_their_own_name_as_stream() -> None:
    def anything(client: Client) -> None: ...

    assert stream_of(anything) == "anything"


# -- what an action does at a client -----------------------------------------------------------------------------------


class Calls:
    """Functions of a method that record how they were called."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.drawn: list[float] = []

    def step(self, client: Client, *rest: Any) -> None:
        self.calls.append((client.phase, *rest))
        self.drawn.append(torch.rand(1).item())

    @sends(logits="B C")
    def share(self, client: Client, batch: PublicBatch) -> Payload:
        return Payload(logits=torch.zeros(batch.size, 4))


BATCHES = (PublicBatch(0, 0, 0, 0, 8), PublicBatch(0, 0, 1, 8, 4))


def test_a_step_is_called_once_or_once_per_batch_with_what_it_receives() -> None:
    client, calls = make_client(model="mlp"), Calls()
    one, two = Payload(x=torch.ones(1)), Payload(x=torch.zeros(1))
    assert perform(client, Step(calls.step)) == []
    assert calls.calls == [("step",)]
    calls.calls.clear()
    perform(client, Step(calls.step, BATCHES, [one, two]))
    assert [(batch, float(received["x"])) for _, batch, received in calls.calls] == [
        (BATCHES[0], 1.0),
        (BATCHES[1], 0.0),
    ]
    calls.calls.clear()
    perform(client, Step(calls.step, received={7: one}))  # for another client
    assert calls.calls == [("step", None)]


def test_global_draws_depend_on_client_round_stream_and_batch_alone() -> None:
    client, other, calls = make_client(model="mlp"), make_client(model="mlp", index=1), Calls()
    for k in (client, client, other):
        torch.rand(3)  # whatever was drawn before
        perform(k, Step(calls.step, BATCHES))
    client.round = 1
    perform(client, Step(calls.step, BATCHES))
    first, again, other_client, later = (calls.drawn[n : n + 2] for n in (0, 2, 4, 6))
    assert first == again
    assert len({*first, *other_client, *later}) == 6


def test_an_exchange_returns_one_payload_per_batch() -> None:
    payloads = perform(make_client(model="mlp"), Exchange(Calls().share, BATCHES))
    assert [p["logits"].shape for p in payloads] == [(8, 4), (4, 4)]


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (Payload(images=torch.zeros(8, 4)), "images was not declared"),
        (Payload(logits=torch.zeros(8, 5)), "declared as B C"),
        (Payload(logits=torch.zeros(8, 4).double()), "float64"),
        (Payload(logits=torch.zeros(8, 4), scalars={"age": 40.0}), "scalar age was not declared"),
        (Payload(), "logits is missing"),
    ],
)
def test_a_payload_that_was_not_declared_does_not_leave_the_client(payload: Payload, why: str) -> None:
    @sends(logits="B C")
    def share(client: Client, batch: PublicBatch) -> Payload:
        return payload

    with pytest.raises(PayloadError, match=why):
        perform(make_client(model="mlp"), Exchange(share, BATCHES[:1]))


def test_a_function_without_a_declaration_cannot_send() -> None:
    def share(client: Client) -> Payload:
        return Payload(x=torch.zeros(1))

    with pytest.raises(TypeError, match="decorate it with @sends"):
        perform(make_client(model="mlp"), Exchange(share))


def test_a_hostile_client_corrupts_what_it_sends() -> None:
    client = make_client(model="mlp", attack="sign_flip")

    @sends(x="2")
    def share(k: Client) -> Payload:
        return Payload(x=torch.tensor([1.0, -2.0]))

    assert perform(client, Exchange(share))[0]["x"].tolist() == [1.0, -2.0]
    client.hostile = True
    assert perform(client, Exchange(share))[0]["x"].tolist() == [-1.0, 2.0]


# -- declarations that depend on options -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({}, {"logits": "B C", "similarity": "B B-1"}),
        ({"use_fisl": False}, {"logits": "B C"}),
        ({"use_fccm": False}, {"similarity": "B B-1"}),
    ],
)
def test_fccl_plus_declares_and_sends_only_what_its_losses_compare(
    options: dict[str, bool], fields: dict[str, str], small: Callable[..., Experiment]
) -> None:
    harness = FederationHarness(small("fccl+", settings=options))
    assert declared_by(harness.method.share) == fields
    for client in harness.clients:
        (payload,) = perform(client, Exchange(harness.method.share, (harness.batch(),), dims=harness.method.dims))
        assert set(payload) == set(fields)


def test_fccl_plus_without_fisl_never_computes_similarities(
    small: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: Any) -> None:
        raise AssertionError("a similarity matrix was computed and not used")

    monkeypatch.setattr(fccl_public_phase, "instance_similarity", forbidden)
    (event,) = FederationHarness(small("fccl+", settings={"use_fisl": False})).run_rounds()
    assert event["left_out"] == []
    with pytest.raises(AssertionError, match="a similarity matrix"):
        FederationHarness(small("fccl+")).run_rounds()


def test_every_methods_exchanges_declare_their_payloads() -> None:
    """A declaration may be computed, but `share` of every public method has one."""
    public = [cls for cls in methods.registry().values() if cls.needs_public]
    assert public
    assert all(hasattr(cls.share, "__sends__") for cls in public if hasattr(cls, "share"))
