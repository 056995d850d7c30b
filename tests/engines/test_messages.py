"""Messages: what is packed arrives, and what is malformed, too large or unknown is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.helpers import equal

from fedchoir import methods
from fedchoir.core.actions import Exchange, PublicBatch, Step
from fedchoir.core.exchange import DeferredReport
from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.core.scores import Evaluation, TestScore, Validation
from fedchoir.engines.headers import unpack_spec
from fedchoir.engines.messages import (
    Envelope,
    MessageError,
    function_of,
    pack_action,
    pack_reply,
    pack_spec,
    unpack_action,
    unpack_reply,
)
from fedchoir.methods.base import Method
from fedchoir.payload import Payload


@pytest.fixture
def method() -> Method:
    clients = (ClientInfo("one", "mlp", 4, 4, "own"), ClientInfo("two", "mlp", 4, 4, "own"))
    return methods.get("fedmd")(methods.get("fedmd").Params(), FederationSpec(("a", "b"), clients, 1, 0))


def payload(value: float) -> Payload:
    return Payload(t=torch.full((2,), value), scalars={"s": value})


def arrived(envelope: Envelope) -> Envelope:
    return Envelope.read(envelope.text(), envelope.blobs)


def test_an_action_arrives_with_the_payloads_of_its_clients(method: Method) -> None:
    batch = PublicBatch(1, 0, 2, 32, 16)
    received = [{0: payload(1.0), 1: payload(2.0)}, {0: payload(3.0)}]
    envelope = Envelope({})
    envelope.header = pack_action(envelope, Exchange(method.share, (batch, batch), received=received, dims={"Q": 7}), 0)
    assert len(envelope.blobs) == 2  # client 1's payload is not sent to client 0
    message = arrived(envelope)
    action = unpack_action(message, message.header, method)
    assert isinstance(action, Exchange)
    assert action.function == method.share
    assert action.batches == (batch, batch)
    assert action.dims == {"Q": 7}
    assert [item[0]["t"].tolist() for item in action.received] == [[1.0, 1.0], [3.0, 3.0]]  # type: ignore[index,union-attr]


def test_equal_payloads_are_sent_once(method: Method) -> None:
    shared: dict[int, bytes] = {}
    common = payload(1.0)
    for _ in range(2):
        envelope = Envelope({}, shared=shared)
        pack_action(envelope, Step(method.local_update, (), [common, common]), 0)
        assert len(envelope.blobs) == 1
    assert len(shared) == 1


def test_only_methods_of_the_class_can_be_sent(method: Method) -> None:
    with pytest.raises(TypeError, match="cannot be sent"):
        pack_action(Envelope({}), Step(lambda client: None), 0)


@pytest.mark.parametrize("name", ["__init__", "_private", "__class__", "params", "nothing", "server", 3, None, "os"])
def test_a_message_can_name_only_public_functions_of_the_method(name: Any, method: Method) -> None:
    with pytest.raises(MessageError, match="has no function"):
        function_of(method, name)


def test_an_exchange_needs_a_declared_payload(method: Method) -> None:
    packed = {"kind": "exchange", "name": "local_update", "batches": [], "received": None, "dims": {}}
    with pytest.raises(MessageError, match="local_update of fedmd sends nothing"):
        unpack_action(Envelope({}), packed, method)


SCORE = TestScore(90.0, {"accuracy": 90.0, "auroc": None, "brier": 0.3}, {"accuracy": [85.0, 95.0], "auroc": None})
EVALUATION = Evaluation((SCORE, TestScore(20.0)), Validation(0.5, 2))


def evaluated(*tests: dict[str, Any], validation: Any = None) -> dict[str, Any]:
    """The header of a reply with an evaluation."""
    evaluation = {"tests": list(tests), "validation": validation}
    return {"payloads": [], "deferred": {"0": {"report": {}, "evaluation": evaluation}}}


def test_a_reply_arrives() -> None:
    deferred = {3: DeferredReport({"local_loss": 0.5}, EVALUATION), 4: DeferredReport()}
    message = arrived(pack_reply([payload(1.0), payload(1.0)], deferred, {"local": 2.0}, {"shares": [1]}))
    payloads, reports, seconds = unpack_reply(message)
    assert [p.scalars for p in payloads] == [{"s": 1.0}, {"s": 1.0}]
    assert all(equal(p, payload(1.0)) for p in payloads)
    assert reports == deferred
    assert seconds == {"local": 2.0}
    assert message.header["keys"] == {"shares": [1]}


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"payloads": [5]},
        {"payloads": [-1]},
        {"payloads": [True]},
        {"payloads": "abc"},
        {"payloads": [], "deferred": {"x": {}}},
        {"payloads": [], "seconds": {"local": "long"}},
        {"payloads": [], "seconds": {"local": -1.0}},
        {"payloads": [], "seconds": {"local": 10**400}},
        {"payloads": [], "seconds": {"local\x1b[31m": 1.0}},
        evaluated(),
        evaluated({"accuracy": 1e9}),
        evaluated({"accuracy": float("nan")}),
        evaluated({"accuracy": "100"}),
        evaluated({"accuracy": 50.0, "metrics": {"auroc": 101.0}}),
        evaluated({"accuracy": 50.0, "metrics": {"brier": -0.1}}),
        evaluated({"accuracy": 50.0, "metrics": {"log_loss": float("inf")}}),
        evaluated({"accuracy": 50.0, "metrics": {"private_samples": 1.0}}),
        evaluated({"accuracy": 50.0, "intervals": {"auroc": [1.0, 2.0, 3.0]}}),
        evaluated({"accuracy": 50.0, "intervals": {"auroc": [1.0, 1e9]}}),
        evaluated({"accuracy": 50.0}, validation={"score": 50.0, "best_round": -1}),
        evaluated({"accuracy": 50.0}, validation={"score": 5000.0, "best_round": 0}),
        evaluated({"accuracy": 50.0}, validation={"score": 50.0, "best_round": 0, "names": []}),
        {"payloads": [], "deferred": {"0": {"report": {f"loss{k}": 0.5 for k in range(20_000)}, "evaluation": None}}},
        {"payloads": [], "deferred": {"0": {"report": {"a\nround 9: all fine": 0.5}, "evaluation": None}}},
        {"payloads": [], "deferred": {"9" * 30: {"report": {}, "evaluation": None}}},
        {"payloads": [], "deferred": {str(k): {"report": {}, "evaluation": None} for k in range(5000)}},
        {"payloads": [0] * 200_000},
        {"payloads": [], "surprise": 1},
        {"payloads": [], "keys": "none"},
    ],
    ids=lambda header: str(header)[:40],
)
def test_malformed_replies_are_errors_and_not_crashes(header: dict[str, Any]) -> None:
    with pytest.raises(MessageError) as refused:
        unpack_reply(Envelope({"deferred": {}, "seconds": {}, **header}))
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "1" * 10_000, '{"a": NaN}', '{"a": -Infinity}', '{"a": 1', "7", "null"]
)
def test_headers_that_no_parser_likes_are_errors_and_not_crashes(text: str) -> None:
    with pytest.raises(MessageError):
        Envelope.read(text, [])


def test_a_blob_that_is_no_payload_is_an_error() -> None:
    with pytest.raises(MessageError, match="not a payload"):
        unpack_reply(Envelope({"payloads": [0], "deferred": {}, "seconds": {}}, [b"rubbish"]))


def test_the_size_is_checked_before_the_content() -> None:
    with pytest.raises(MessageError, match="1000000 are allowed"):
        Envelope.read("{not even json", [b"x" * 2_000_000], 1_000_000)


@pytest.mark.parametrize("text", ["[1, 2]", "null", "{", ""])
def test_headers_must_be_objects(text: str) -> None:
    with pytest.raises(MessageError):
        Envelope.read(text, [])


def test_a_federation_spec_arrives(method: Method) -> None:
    message = arrived(Envelope(pack_spec(method.spec)))
    assert unpack_spec(message.header) == method.spec
