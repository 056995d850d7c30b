"""The client of secure aggregation refuses whatever would reveal more than a sum."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.core.masking_engine import MaskingEngine, SecureSums, key_request, logits, share

from fedchoir.core.actions import Exchange
from fedchoir.core.aggregation import weighted_mean
from fedchoir.privacy.secure_aggregation.client import SecureAggregationClient
from fedchoir.privacy.secure_aggregation.messages import MASKED, sum_context
from fedchoir.privacy.secure_aggregation.terms import SecureAggregationError, SumLimits, SumTerms
from fedchoir.utils.errors import QuorumError


def after_a_dropout(strict: bool) -> tuple[MaskingEngine, dict[str, Any]]:
    """Client 3 dropped out of a sum; the request for unmasking that was sent to client 0."""
    engine = MaskingEngine(logits(4))
    next_sum = SecureSums(engine, strict)
    next_sum()
    engine.disconnected = {3}
    next_sum()
    return engine, dict(engine.requests[-1][0])


@pytest.mark.parametrize("strict", [False, True])
def test_a_sum_is_unmasked_once(strict: bool) -> None:
    """The classic attack: first claim that client 3 dropped out, then that it sent, and combine the two replies."""
    engine, request = after_a_dropout(strict)
    for changed in (request, {**request, "sent": [0, 1, 2, 3]}, {**request, "kind": "senders"}):
        with pytest.raises(SecureAggregationError, match="used already"):
            engine.clients[0].exchange_keys(changed)


@pytest.mark.parametrize("kind", ["senders", "unmasking_shares"])
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"sent": [0, 1]}, "more than a sum"),  # below the threshold
        ({"sent": [1, 2, 3]}, "more than a sum"),  # without the client that is asked, which knows that it sent
        ({"sent": [0, 1, 2, 7]}, "more than a sum"),  # with a client that was never part of the sum
        ({"sum": "0" * 32}, "not the last sum"),
    ],
)
def test_requests_that_would_reveal_more_are_refused(kind: str, change: dict[str, Any], why: str) -> None:
    engine = MaskingEngine(logits(4))
    next_sum = SecureSums(engine, strict=True)
    next_sum()
    engine.mute = {0}
    next_sum()
    request = {**engine.requests[-1][0], "kind": kind}
    with pytest.raises(SecureAggregationError, match=why):
        engine.clients[0].exchange_keys({**request, **change})
    with pytest.raises(SecureAggregationError, match="used already"):  # a refused request uses up the keys
        engine.clients[0].exchange_keys(request)


def test_a_client_reveals_shares_only_for_the_list_that_it_signed() -> None:
    engine = MaskingEngine(logits(4))
    request = key_request(engine, strict=True)
    signatures = {str(k): engine.masked(k, request).keys["signature"] for k in range(4)}
    about = {"sum": request["sum"], "signatures": signatures, "shares": {}, "hashes": {}}
    assert engine.clients[0].exchange_keys({"kind": "senders", "sum": request["sum"], "sent": [0, 1, 2]})
    with pytest.raises(SecureAggregationError, match="did not sign that list"):
        engine.clients[0].exchange_keys({"kind": "unmasking_shares", "sent": [0, 1, 2, 3], **about})
    with pytest.raises(SecureAggregationError, match="did not sign that list"):  # client 1 signed none
        engine.clients[1].exchange_keys({"kind": "unmasking_shares", "sent": [0, 1, 2], **about})
    assert engine.clients[2].exchange_keys({"kind": "senders", "sum": request["sum"], "sent": [0, 1, 2]})
    with pytest.raises(SecureAggregationError, match="was signed before"):
        engine.clients[2].exchange_keys({"kind": "senders", "sum": request["sum"], "sent": [0, 2, 3]})


def test_a_client_refuses_another_exchange_threshold_or_federation_than_its_own() -> None:
    for change, why in (
        ({"exchange": [0, 1]}, r"the sum is for exchange \[0, 1\], and this is \[0, 0\]"),
        ({"threshold": 2}, "4 sites have a threshold of 3"),
    ):
        engine = MaskingEngine(logits(4))
        request = key_request(engine)
        with pytest.raises(SecureAggregationError, match=why):
            engine.clients[0].mask_payloads([], {**request, **change}, SumTerms((0, 0), engine.names, {"": ()}))
    engine = MaskingEngine(logits(4))
    request = key_request(engine)
    engine.names = ("c0", "c1", "c2", "another")
    with pytest.raises(SecureAggregationError, match="do not belong to the sites of this federation"):
        engine.masked(0, request)


def test_weights_that_would_single_out_a_client_are_refused() -> None:
    engine = MaskingEngine(logits(4))
    request = key_request(engine)
    with pytest.raises(SecureAggregationError, match=r"c2 would be 99\.7% of the mean, and 80% is allowed"):
        engine.masked(0, request, Exchange(share, aggregator=weighted_mean([1, 1, 1000, 1])))


def test_a_site_sets_the_smallest_number_of_sites_in_a_sum() -> None:
    engine = MaskingEngine(logits(4))
    engine.clients[0] = SecureAggregationClient(0, {}, limits=SumLimits(min_sites=4))
    next_sum = SecureSums(engine)
    next_sum()
    engine.disconnected = {3}
    with pytest.raises(QuorumError, match=r"c0: .*a sum over 3 sites, and this site requires 4"):
        next_sum()


def test_unknown_requests_and_missing_keys_are_refused() -> None:
    client = SecureAggregationClient(0, {})
    with pytest.raises(SecureAggregationError, match="unknown request 'secrets'"):
        client.exchange_keys({"kind": "secrets"})
    for kind in ("senders", "unmasking_shares"):
        with pytest.raises(SecureAggregationError, match="missing, or were used already"):
            client.exchange_keys({"kind": kind})


def test_a_payload_leaves_masked_with_keys_for_the_next_sum() -> None:
    engine = MaskingEngine(logits(3))
    request = key_request(engine)
    reply = engine.masked(0, request)
    (masked,), message = reply.payloads, reply.keys
    assert list(masked) == [MASKED]
    assert masked[MASKED].dtype == torch.int32
    assert message["layout"] == [{"tensors": [["logits", [60, 10], "float32"]], "scalars": []}]
    assert message["key_shares"]["number"] == 2
    with pytest.raises(SecureAggregationError, match="were used before"):  # one request masks one payload
        engine.masked(0, request)


def test_a_client_keeps_its_encryption_key_in_its_store() -> None:
    store: dict[str, str] = {}
    keys = [SecureAggregationClient(0, store).exchange_keys({"kind": "encryption_key"}) for _ in range(2)]
    assert keys[0] == keys[1]
    assert SecureAggregationClient(0, {}).exchange_keys({"kind": "encryption_key"}) != keys[0]


def test_a_server_cannot_overwrite_secrets_with_the_fields_of_a_request() -> None:
    engine = MaskingEngine(logits(3))
    request = key_request(engine, strict=True)
    store = engine.clients[0]._store
    before = store["key_shares"]
    engine.masked(0, {**request, "seed": "00" * 32, "mask": "00" * 32, "context": "", "weights": {}})
    assert '"seed": "' + "00" * 32 not in store["pending"]
    assert before[1:-1].split(", ")[1] in store["pending"]


def test_the_context_covers_exchange_participants_keys_and_weights() -> None:
    request = key_request(MaskingEngine(logits(3)))
    weights = {"": {0: 1.0, 1: 1.0, 2: 1.0}}
    changed = [
        {**request, "strict": True},
        {**request, "sum": "0" * 32},
        {**request, "exchange": [0, 1]},
        {**request, "threshold": 2},
        {**request, "key_shares": {k: request["key_shares"][k] for k in "01"}},
        {**request, "encryption_keys": {k: request["encryption_keys"][k] for k in "01"}},
    ]
    contexts = {sum_context(r, weights) for r in (request, *changed)}
    contexts.add(sum_context(request, {"": {0: 1.0, 1: 1.0, 2: 0.5}}))
    assert len(contexts) == 8


@pytest.mark.parametrize("wrong", [None, "text", [], {}, [3], {"0": None}, {"0": {}}, {"x": {"mask": "zz"}}])
@pytest.mark.parametrize("field", ["exchange", "key_shares", "encryption_keys", "threshold"])
def test_malformed_requests_are_refused(field: str, wrong: Any) -> None:
    engine = MaskingEngine(logits(3))
    request = {**key_request(engine), field: wrong}
    with pytest.raises(ValueError):
        engine.clients[0].mask_payloads([], request, SumTerms((0, 0), engine.names, {"": ()}))
    if field in ("encryption_keys", "threshold"):
        with pytest.raises(ValueError):
            engine.clients[0].exchange_keys({**request, "kind": "key_shares"})
