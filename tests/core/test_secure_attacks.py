"""Attacks on secure sums by a dishonest server, and by dishonest sites. Each was found in a review, and each fails."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from tests.core.masking_engine import MaskingEngine, SecureSums, key_request, logits, share
from tests.helpers import assert_uniform

from fedchoir.core.actions import Exchange
from fedchoir.core.aggregation import weighted_mean
from fedchoir.core.exchange import Reply
from fedchoir.privacy.secure_aggregation import shamir
from fedchoir.privacy.secure_aggregation.client import SecureAggregationClient
from fedchoir.privacy.secure_aggregation.fixed_point import FixedPoint, Words
from fedchoir.privacy.secure_aggregation.messages import MASKED, list_of
from fedchoir.privacy.secure_aggregation.terms import SecureAggregationError, SumTerms, threshold_of
from fedchoir.utils.errors import QuorumError


class KeyedHashes:
    """Signatures that only their owner makes (a keyed hash), quick enough for fifty sites."""

    def __init__(self, name: str) -> None:
        self._name = name

    def sign(self, content: bytes) -> bytes:
        return hmac.digest(f"secret of {self._name}".encode(), content, hashlib.sha256)

    def check(self, name: str, content: bytes, signature: bytes) -> None:
        if not hmac.compare_digest(KeyedHashes(name).sign(content), signature):
            raise SecureAggregationError(f"refused: the signature of {name} is wrong")


def signing_engine(count: int, rows: int = 60) -> MaskingEngine:
    engine = MaskingEngine(logits(count, rows))
    engine.clients = [SecureAggregationClient(k, {}, KeyedHashes(name), "run") for k, name in enumerate(engine.names)]
    return engine


def added(replies: Iterable[Reply]) -> Words:
    rows = [reply.payloads[0][MASKED].numpy().view(np.uint32) for reply in replies]
    return np.sum(rows, axis=0, dtype=np.uint32)


# -- weights -------------------------------------------------------------------------------------------------------


def test_weights_that_the_server_sends_are_not_used() -> None:
    """Weight 1 for the victim and 1e-12 for the others gave the victim's payload to 1e-6."""
    engine = MaskingEngine(logits(4))
    request = key_request(engine) | {"weights": {"": {"0": 1.0, "1": 1e-12, "2": 1e-12, "3": 1e-12}}}
    total = FixedPoint(4).total(added(engine.masked(k, request) for k in range(4)))
    assert np.abs(total / 4 - engine.mean().numpy().ravel()).max() < 1e-5


def test_a_victim_that_is_told_other_sizes_than_the_others_stays_hidden() -> None:
    """Masks depend on the weights of all participants, as each of them computes them. Different ones do not cancel."""
    engine = MaskingEngine(logits(4, 2000))
    request = key_request(engine)
    told = [Exchange(share, aggregator=weighted_mean(sizes)) for sizes in ([70, 10, 10, 10], [1, 1, 1, 1])]
    total = added(engine.masked(k, request, told[k > 0]) for k in range(4))
    assert_uniform(total)
    others = FixedPoint(4).words(torch.stack(engine.tensors[1:]).sum(dim=0).numpy().ravel())
    assert_uniform(total - others)  # with the others as accomplices that reveal their payloads, but not their keys


def test_a_victim_refuses_to_be_most_of_the_mean() -> None:
    engine = MaskingEngine(logits(4))
    request = key_request(engine)
    with pytest.raises(SecureAggregationError, match=r"c0 would be 99\.\d% of the mean"):
        engine.masked(0, request, Exchange(share, aggregator=weighted_mean([1000, 1, 1, 1])))


def test_drop_outs_cannot_make_a_victim_most_of_the_mean() -> None:
    """Each list of senders is checked again: without the large sites the victim's share would be too large."""
    engine = signing_engine(7)
    exchange = Exchange(share, aggregator=weighted_mean([40, 1, 1, 1, 1, 200, 200]))
    request = key_request(engine, strict=True)
    for k in range(7):
        engine.masked(k, request, exchange)
    for k in range(5):
        with pytest.raises(SecureAggregationError, match=r"c0 would be 90\.9% of the mean, and 80% is allowed"):
            engine.clients[k].exchange_keys({"kind": "senders", "sum": request["sum"], "sent": [0, 1, 2, 3, 4]})


# -- membership ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
def test_an_exchange_cannot_be_repeated_without_a_victim(strict: bool) -> None:
    """The sum with client 3 minus the sum without it would be its payload."""
    engine = signing_engine(4)
    SecureSums(engine, strict)()
    engine.disconnected = {3}
    with pytest.raises(QuorumError, match=r"was summed over the clients \[0, 1, 2, 3\] before"):
        SecureSums(engine, strict)()
    engine.disconnected = set()
    again, _ = SecureSums(engine, strict)()  # a server that was interrupted gets the same sum again
    assert (again["logits"] - engine.mean()).abs().max() < 1e-5


@pytest.mark.parametrize("strict", [False, True])
def test_an_exchange_cannot_be_repeated_with_a_false_dropout(strict: bool) -> None:
    """The second sum has the same participants, but the server claims that client 3 did not send."""
    engine = signing_engine(4)
    SecureSums(engine, strict)()
    request = key_request(engine, strict)
    for k in range(4):
        engine.masked(k, request)
    for k in range(3):
        with pytest.raises(SecureAggregationError, match=r"was summed over the clients \[0, 1, 2, 3\] before"):
            engine.clients[k].exchange_keys({"kind": "senders", "sum": request["sum"], "sent": [0, 1, 2]})


def test_a_victim_cannot_be_moved_into_another_exchange() -> None:
    """The others repeat exchange 0 with the same clients, and the victim sends exchange 1: its change would show."""
    engine = signing_engine(4, 2000)
    first = key_request(engine)
    before = added(engine.masked(k, first) for k in range(4))
    again = key_request(engine)
    with pytest.raises(SecureAggregationError, match=r"the sum is for exchange \[1, 0\], and this is \[0, 0\]"):
        engine.clients[0].mask_payloads([], {**again, "exchange": [1, 0]}, SumTerms((0, 0), engine.names, {"": ()}))
    again = key_request(engine)
    engine.tensors[0] = engine.tensors[0] + 1
    moved = [engine.masked(0, {**again, "exchange": [1, 0]}), *(engine.masked(k, again) for k in (1, 2, 3))]
    assert_uniform(added(moved) - before)


# -- who sent: the server tells some that the victim dropped out, and others that it sent -----------------------------


def shares_of_victim(count: int, deceived: int) -> tuple[int, int]:
    """How many shares of the victim's (client 0's) seed and mask key the server and one accomplice obtain.

    ``deceived`` honest clients are told that everyone sent, the others that the victim dropped out.
    """
    engine = signing_engine(count, 1)
    request, accomplice = key_request(engine, strict=True), engine.clients[-1]
    everyone = {str(k): engine.masked(k, request).keys["signature"] for k in range(count)}
    context = bytes.fromhex(json.loads(accomplice._store["pending"])["context"])
    honest, without = list(range(1, count - 1)), list(range(1, count))
    told_sent, told_dropped = [0, *honest[:deceived]], honest[deceived:]
    signed = {str(count - 1): accomplice._sign("senders", context, list_of(without))}
    for k in told_dropped:
        if reply := reply_of(engine.clients[k], {"kind": "senders", "sum": request["sum"], "sent": without}):
            signed[str(k)] = reply["senders"]["signature"]
    unmask = {
        "kind": "unmasking_shares", "sum": request["sum"],
        "shares": {str(k): "00" * 94 for k in range(count)}, "hashes": {str(k): "00" * 32 for k in range(count)},
    }  # fmt: skip
    story = {"sent": list(range(count)), "signatures": everyone}
    seeds = sum(bool(reply_of(engine.clients[k], {**unmask, **story})) for k in told_sent)
    story = {"sent": without, "signatures": signed}
    keys = sum(bool(reply_of(engine.clients[k], {**unmask, **story})) for k in told_dropped)
    return seeds + 1, keys + 1


def reply_of(client: SecureAggregationClient, request: dict[str, Any]) -> dict[str, Any]:
    """A client's reply; empty where it refuses. (The content of shares does not matter here, only that it replies.)"""
    try:
        return client.exchange_keys(request)
    except SecureAggregationError:
        return {}


@pytest.mark.parametrize(
    ("count", "deceived"), [(n, d) for n in (3, 4, 5, 7, 9) for d in range(n - 1)] + [(51, 24), (51, 16), (51, 33)]
)
def test_two_stories_about_who_sent_do_not_reveal_both_secrets_of_a_victim(count: int, deceived: int) -> None:
    """With a threshold of ⌊n/2⌋ + 1 and no signatures, one accomplice sufficed for 3, 5, 7, 9 and 51 sites."""
    seeds, keys = shares_of_victim(count, deceived)
    threshold = threshold_of(count)
    assert seeds < threshold or keys < threshold
    assert deceived < count - 2 or seeds == count  # one story for all is an honest sum


def test_signatures_of_another_sum_or_of_the_server_do_not_count() -> None:
    engine = signing_engine(4)
    request = key_request(engine, strict=True)
    for k in range(4):
        engine.masked(k, request)
    ask = {"sum": request["sum"], "sent": [0, 1, 2]}
    signature = engine.clients[0].exchange_keys({"kind": "senders", **ask})["senders"]["signature"]
    shares = {"signatures": dict.fromkeys("0123", signature), "shares": {}, "hashes": {}}
    with pytest.raises(SecureAggregationError, match="1 clients have validly signed this list of senders, and 3"):
        engine.clients[0].exchange_keys({"kind": "unmasking_shares", **ask, **shares})


# -- dishonest sites -----------------------------------------------------------------------------------------------


class Dishonest(SecureAggregationClient):
    """Follows the protocol, except for its shares, its key shares or its masked numbers."""

    def __init__(self, index: int, fault: str) -> None:
        super().__init__(index, {})
        self._fault = fault

    def exchange_keys(self, request: Any) -> Any:
        reply = super().exchange_keys(request)
        if "unmasking_shares" in reply and self._fault == "shares":
            reply["unmasking_shares"]["seeds"] = dict.fromkeys(reply["unmasking_shares"]["seeds"], "11" * 33)
        if "key_shares" in reply and self._fault == "encrypted share":
            reply["key_shares"]["shares"]["0"] = "22" * 94
        return reply

    def mask_payloads(self, payloads: Any, request: Any, terms: Any) -> Any:
        (masked,), message = super().mask_payloads(payloads, request, terms)
        if self._fault == "range":
            masked[MASKED][:5] += 2**30
        return [masked], message


def test_a_site_with_wrong_shares_is_named_and_the_sum_is_computed_without_them() -> None:
    engine = MaskingEngine(logits(5))
    engine.clients[1] = Dishonest(1, "shares")
    mean, stats = SecureSums(engine, strict=True)()
    assert (mean["logits"] - engine.mean()).abs().max() < 1e-5
    (out,) = stats.left_out
    assert out["client"] == "c1"
    assert "its shares of the keys of c0, c1, c2, c3, c4 are not those that it was given" in out["why"]


def test_a_site_that_gives_another_a_wrong_share_is_named() -> None:
    engine = MaskingEngine(logits(5))
    engine.clients[3] = Dishonest(3, "encrypted share")
    mean, stats = SecureSums(engine, strict=True)()
    assert (mean["logits"] - engine.mean()).abs().max() < 1e-5
    why = "c0 reports that the key share from it does not match the hash that it published"
    assert [(out["client"], out["why"]) for out in stats.left_out] == [("c3", why)]


def test_a_site_whose_shares_do_not_give_its_keys_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum is lost, because the site's payload cannot be taken out of it again."""
    engine, split = MaskingEngine(logits(5)), shamir.split
    client = engine.clients[2]
    share_keys = client._share_keys

    def dishonest(request: Any) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(shamir, "split", lambda secret, *rest: split(bytes(range(32)), *rest))
            return share_keys(request)

    monkeypatch.setattr(client, "_share_keys", dishonest)
    with pytest.raises(QuorumError, match="because of c2: the shares of its seed do not give its seed; no aggregate"):
        SecureSums(engine, strict=True)()


@pytest.mark.parametrize("strict", [False, True])
def test_an_absurd_aggregate_is_never_used(strict: bool) -> None:
    """Masked numbers have no range check, so the mean is checked: clipped numbers cannot have such a mean."""
    engine = MaskingEngine(logits(4))
    engine.clients[3] = Dishonest(3, "range")
    with pytest.raises(QuorumError, match="the aggregate of share is not used: logits: the mean has a magnitude of 10"):
        SecureSums(engine, strict)()
