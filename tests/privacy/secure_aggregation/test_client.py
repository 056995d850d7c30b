"""The client of secure aggregation refuses whatever would reveal more than a sum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.core.masking_engine import MaskingEngine, key_request, logits, secure_sums

from fedchoir.payload import Payload
from fedchoir.privacy.secure_aggregation.client import (
    MASKED,
    FolderStore,
    SecureAggregationClient,
    read_weights,
    sum_context,
)
from fedchoir.privacy.secure_aggregation.crypto import SecureAggregationError

NAMES = ["c0", "c1", "c2"]


def after_a_dropout(strict: bool) -> tuple[MaskingEngine, dict[str, Any]]:
    """Client 3 dropped out of a sum; the request for unmasking that was sent to client 0."""
    engine = MaskingEngine(logits(4))
    next_sum = secure_sums(engine, strict)
    next_sum()
    engine.disconnected = {3}
    next_sum()
    return engine, dict(engine.requests[-1][0])


@pytest.mark.parametrize("strict", [False, True])
def test_a_sum_is_unmasked_once(strict: bool) -> None:
    """The classic attack: first claim that client 3 dropped out, then that it sent, and combine the two replies."""
    engine, request = after_a_dropout(strict)
    with pytest.raises(SecureAggregationError, match="used already"):
        engine.clients[0].exchange_keys(request)
    with pytest.raises(SecureAggregationError, match="used already"):
        engine.clients[0].exchange_keys({**request, "sent": [0, 1, 2, 3]})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"sent": [0, 1]}, "more than a sum"),  # below the threshold
        ({"sent": [1, 2, 3]}, "more than a sum"),  # without the client that is asked, which knows that it sent
        ({"sent": [0, 1, 2, 7]}, "more than a sum"),  # with a client that was never part of the sum
        ({"sum": "0" * 32}, "not the last sum"),
    ],
)
def test_requests_that_would_reveal_more_are_refused(change: dict[str, Any], why: str) -> None:
    engine = MaskingEngine(logits(4))
    next_sum = secure_sums(engine, strict=True)
    next_sum()
    engine.mute = {0}
    next_sum()
    request = dict(engine.requests[-1][0])
    with pytest.raises(SecureAggregationError, match=why):
        engine.clients[0].exchange_keys({**request, **change})
    with pytest.raises(SecureAggregationError, match="used already"):  # a refused request uses up the keys
        engine.clients[0].exchange_keys(request)


def test_weights_that_would_single_out_a_client_are_refused() -> None:
    engine = MaskingEngine(logits(3))
    request = key_request(engine, NAMES)
    with pytest.raises(SecureAggregationError, match="weight above 0"):
        engine.clients[0].mask_payloads([], {**request, "weights": {"": {"0": 1.0, "1": 0.0, "2": 0.0}}})
    for weights in ({"": {"0": 1.0}}, {"": {"0": 1.0, "1": 2.0}}, {"": {"0": 1.0, "1": float("nan")}}):
        with pytest.raises(SecureAggregationError, match="weight above 0"):
            read_weights(weights, {"0": {}, "1": {}})
    assert read_weights({"": {"0": 1.0, "1": 0.5}}, {"0": {}, "1": {}}) == {"": {0: 1.0, 1: 0.5}}


def test_unknown_requests_and_missing_keys_are_refused() -> None:
    client = SecureAggregationClient(0, {})
    with pytest.raises(SecureAggregationError, match="unknown request 'secrets'"):
        client.exchange_keys({"kind": "secrets"})
    with pytest.raises(SecureAggregationError, match="missing, or were used already"):
        client.exchange_keys({"kind": "unmasking_shares"})


def test_a_payload_leaves_masked_with_keys_for_the_next_sum() -> None:
    engine = MaskingEngine(logits(3))
    request = key_request(engine, NAMES)
    (masked,), message = engine.clients[0].mask_payloads([Payload(logits=engine.tensors[0])], request)
    assert list(masked) == [MASKED]
    assert masked[MASKED].dtype == torch.int32
    assert message["layout"] == [{"tensors": [["logits", [60, 10], "float32"]], "scalars": []}]
    assert message["key_shares"]["number"] == 2
    with pytest.raises(SecureAggregationError, match="were used before"):  # one request masks one payload
        engine.clients[0].mask_payloads([Payload(logits=engine.tensors[0])], request)


def test_a_client_keeps_its_encryption_key_in_its_store() -> None:
    store: dict[str, str] = {}
    keys = [SecureAggregationClient(0, store).exchange_keys({"kind": "encryption_key"}) for _ in range(2)]
    assert keys[0] == keys[1]
    assert SecureAggregationClient(0, {}).exchange_keys({"kind": "encryption_key"}) != keys[0]


def test_the_context_covers_participants_keys_and_weights() -> None:
    request = key_request(MaskingEngine(logits(3)), NAMES)
    changed = [
        {**request, "weights": {"": {"0": 1.0, "1": 1.0, "2": 0.5}}},
        {**request, "strict": True},
        {**request, "sum": "0" * 32},
        {**request, "key_shares": {k: request["key_shares"][k] for k in "01"}},
    ]
    assert len({sum_context(r) for r in (request, *changed)}) == 5
    assert sum_context({**request, "threshold": 3}) == sum_context(request)


def test_stored_keys_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "sums")
    store["key_shares"] = "one"
    store["key_shares"] = "two"
    assert ((tmp_path / "sums" / "key_shares").stat().st_mode & 0o777, dict(store)) == (0o600, {"key_shares": "two"})
    assert (store.pop("key_shares"), store.pop("key_shares", None), len(store)) == ("two", None, 0)
