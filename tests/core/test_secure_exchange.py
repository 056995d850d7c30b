"""Secure sums between desks: messages, drop-outs, what the wire carries, what a node refuses, costs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.contract.test_flower_contract import Courier, on_flower
from tests.privacy.test_secure_sum import assert_uniform

from fedchoir import Experiment
from fedchoir.core.actions import Exchange
from fedchoir.core.aggregation import by_name, gather, mean, weighted_mean
from fedchoir.core.exchange import Reply, RoundStats
from fedchoir.core.secure_exchange import SecureExchange
from fedchoir.deploy.keys import make_site
from fedchoir.payload import Payload, sends
from fedchoir.privacy.secure_aggregation.client import MASKED, FolderStore, SecureAggregationClient
from fedchoir.privacy.secure_aggregation.crypto import SecureAggregationError
from fedchoir.privacy.secure_aggregation.peer_keys import VerifiedPeers
from fedchoir.utils.errors import QuorumError, UsageError


@sends(logits="N C")
def share(client: Any) -> Payload:
    raise AssertionError("answers come from the test")


class Room:
    """An engine of desks: everyone says the tensor it was given."""

    def __init__(self, said: list[torch.Tensor]) -> None:
        self.said = said
        self.desks = [SecureAggregationClient(k, {}) for k in range(len(said))]
        self.wire: list[Reply] = []
        self.requests: list[dict[int, Mapping[str, Any]]] = []
        self.away: set[int] = set()
        self.mute: set[int] = set()  # they answer, and then say nothing about keys

    def execute(self, clients: Any, actions: Any, round_index: int, masking: Any = None) -> Iterator[Reply]:
        for k in masking:
            if k in self.away:
                yield Reply(k, error="not connected")
                continue
            parts, keys = self.desks[k].mask_payloads([Payload(logits=self.said[k])], masking[k])
            self.wire.append(Reply(k, parts, keys=keys))
            yield self.wire[-1]

    def exchange_keys(self, requests: Mapping[int, Mapping[str, Any]]) -> Iterator[Reply]:
        self.requests.append(dict(requests))
        for k, request in requests.items():
            lost = k in self.away or (k in self.mute and request["kind"] == "unmasking_shares")
            yield Reply(k, error="not connected") if lost else Reply(k, keys=self.desks[k].exchange_keys(request))


def sums(room: Room, strict: bool = False) -> Callable[..., tuple[Payload, RoundStats]]:
    count = len(room.said)
    server = SecureExchange(room, [f"c{k}" for k in range(count)], "test", strict=strict, quorum=0.5)

    def exchange(**changes: Any) -> tuple[Payload, RoundStats]:
        stats, ask = RoundStats(), Exchange(share, **changes)
        stats.messages += count
        got = server.exchange(ask, [ask], range(count), 0, stats, lambda reply: "", lambda replies: replies)
        return got, stats

    return exchange


def logits(count: int, rows: int = 60) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(count)
    return [torch.randn(rows, 10, generator=draw) * 3 for _ in range(count)]


# -- the protocol ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
def test_one_message_a_client_while_everyone_is_there(strict: bool) -> None:
    room = Room(logits(4))
    exchange = sums(room, strict)
    plain = torch.stack(room.said).mean(dim=0)
    counts = []
    for _ in range(3):
        got, stats = exchange()
        assert (got["logits"] - plain).abs().max() < 1e-5
        assert stats.left_out == []
        counts.append(stats.messages)
    # two for the keys at the start; a strict sum takes one more every time
    assert counts == ([16, 8, 8] if strict else [12, 4, 4])


@pytest.mark.parametrize("strict", [False, True])
def test_drop_outs_cost_one_more_message_and_who_comes_back_is_asked_for_keys(strict: bool) -> None:
    room = Room(logits(5))
    exchange = sums(room, strict)
    exchange()
    room.away = {1, 4}
    got, stats = exchange()
    assert (got["logits"] - torch.stack([room.said[k] for k in (0, 2, 3)]).mean(dim=0)).abs().max() < 1e-5
    assert [out["client"] for out in stats.left_out] == ["c1", "c4"]
    assert stats.messages == 5 + 3
    room.away = {4}
    got, stats = exchange()
    assert (got["logits"] - torch.stack(room.said[:4]).mean(dim=0)).abs().max() < 1e-5
    assert [(out["client"], out["why"]) for out in stats.left_out] == [("c4", "not connected")]
    room.away = {0, 1, 4}
    with pytest.raises(QuorumError, match=r"only 2 of 5 clients gave a usable answer to share.*needs 3"):
        exchange()


def test_too_few_left_to_lift_the_masks() -> None:
    room = Room(logits(5))
    exchange = sums(room)
    exchange()
    room.away, room.mute = {4}, {0, 1}
    with pytest.raises(QuorumError, match=r"only 2 of 4 clients helped to lift the masks of share.*needs 3"):
        exchange()
    room.away, room.mute = set(), set()
    got, _ = exchange()
    assert (got["logits"] - torch.stack(room.said).mean(dim=0)).abs().max() < 1e-5


class Odd(SecureAggregationClient):
    """Answers as it should, but for one thing."""

    def __init__(self, index: int, change: Callable[[dict[str, Any]], Any]) -> None:
        super().__init__(index, {})
        self._change = change

    def exchange_keys(self, request: Any) -> Any:
        return self._change(super().exchange_keys(request))

    def mask_payloads(self, parts: Any, request: Any) -> Any:
        parts, message = super().mask_payloads(parts, request)
        return parts, self._change(message)


@pytest.mark.parametrize(
    "change",
    [
        lambda message: {},
        lambda message: {**message, "encryption_key": {"key": "abc"}} if "encryption_key" in message else message,
        lambda message: (
            {**message, "encryption_key": {"key": "00", "signature": ""}} if "encryption_key" in message else message
        ),
        lambda message: (
            {**message, "key_shares": {**message["key_shares"], "shares": {}}} if "key_shares" in message else message
        ),
        lambda message: {**message, "key_shares": 3} if "key_shares" in message else message,
        lambda message: (
            {**message, "unmasking_shares": {"seeds": {}, "keys": {}}} if "unmasking_shares" in message else message
        ),
        lambda message: {**message, "clipped": "many"} if "clipped" in message else message,
        lambda message: {**message, "layout": [{"tensors": [["logits", [10**12], "float32"]], "scalars": []}]},
        lambda message: {**message, "layout": [{"tensors": [["logits", [60, 10], "os"]], "scalars": []}]},
        lambda message: {**message, "layout": "all of it"},
    ],
)
def test_a_client_that_answers_with_nonsense_is_left_out_and_nothing_breaks(change: Any) -> None:
    room = Room(logits(4))
    room.desks[1] = Odd(1, change)
    _, stats = sums(room, strict=True)()
    assert {out["client"] for out in stats.left_out} == {"c1"}


def test_weights_are_those_of_the_plain_mean() -> None:
    room = Room(logits(3))
    exchange = sums(room)
    for combine in (weighted_mean([100, 1, 7]), by_name(logits=weighted_mean([3, 2, 1]))):
        plain = combine()
        for k, said in enumerate(room.said):
            plain.add(k, [Payload(logits=said)])
        got, _ = exchange(aggregator=combine)
        assert (got["logits"] - plain.result()[0]["logits"]).abs().max() < 1e-4
    with pytest.raises(UsageError, match="with test: its exchange share needs single answers"):
        exchange(aggregator=gather)
    with pytest.raises(QuorumError, match="c2: it has no weight in the mean"):
        exchange(aggregator=weighted_mean([1, 1, 0]))


def test_the_wire_carries_nothing_of_the_answers() -> None:
    room = Room([torch.full((4000, 10), 5.0), torch.zeros(4000, 10), torch.zeros(4000, 10)])
    exchange = sums(room)
    for _ in range(2):
        exchange()
    first, second = ([reply for reply in room.wire if reply.client == 0][n].parts[0][MASKED] for n in (0, 1))
    for masked in (first, second):
        assert_uniform(masked.numpy().view(np.uint32))
    both = np.corrcoef(first.numpy().view(np.uint32), second.numpy().view(np.uint32))[0, 1]
    assert abs(both) < 5 / np.sqrt(40_000)
    message = json.dumps([dict(reply.keys) for reply in room.wire if reply.client == 0])
    assert "5.0" not in message


# -- what a node refuses -----------------------------------------------------------------------------------------------


def after_a_sum(strict: bool) -> tuple[Room, dict[str, Any]]:
    """A room in which client 3 dropped out of a sum, and the request that was sent to client 0 to lift the masks."""
    room = Room(logits(4))
    exchange = sums(room, strict)
    exchange()
    room.away = {3}
    exchange()
    return room, dict(room.requests[-1][0])


@pytest.mark.parametrize("strict", [False, True])
def test_masks_are_lifted_once(strict: bool) -> None:
    """The classic attack: first say that 3 dropped out, then that it sent, and put the two together."""
    room, request = after_a_sum(strict)
    with pytest.raises(SecureAggregationError, match="used already"):
        room.desks[0].exchange_keys(request)
    with pytest.raises(SecureAggregationError, match="used already"):
        room.desks[0].exchange_keys({**request, "sent": [0, 1, 2, 3]})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"sent": [0, 1]}, "more than a sum"),  # below the threshold
        ({"sent": [1, 2, 3]}, "more than a sum"),  # without the one who is asked, who knows that it sent
        ({"sent": [0, 1, 2, 7]}, "more than a sum"),  # who was never there
        ({"sum": "0" * 32}, "not the last sum"),
    ],
)
def test_requests_that_would_show_more_are_refused(change: dict[str, Any], why: str) -> None:
    room = Room(logits(4))
    exchange = sums(room, strict=True)
    exchange()
    room.mute = {0}
    exchange()
    request = dict(room.requests[-1][0])
    with pytest.raises(SecureAggregationError, match=why):
        room.desks[0].exchange_keys({**request, **change})
    with pytest.raises(SecureAggregationError, match="used already"):  # and after that nothing is opened any more
        room.desks[0].exchange_keys(request)


def test_a_weight_that_would_single_someone_out_is_refused() -> None:
    room = Room(logits(3))
    server = SecureExchange(room, "abc", "test", strict=False, quorum=0.5)
    server._prepare_keys(range(3), RoundStats())
    request = server._request(server._key_shares, {"": [1.0, 1.0, 1.0]})
    with pytest.raises(SecureAggregationError, match="weight above 0"):
        room.desks[0].mask_payloads([], {**request, "weights": {"": {"0": 1.0, "1": 0.0, "2": 0.0}}})


def test_a_server_cannot_put_keys_of_its_own_in_the_place_of_a_sites(tmp_path: Path) -> None:
    """Where sites have each other's public keys, only what its owner has signed for this run is taken, and once."""
    names = ["c0", "c1", "c2"]
    for name in names:
        make_site(tmp_path, name)
    room = Room(logits(3))
    room.desks = [
        SecureAggregationClient(k, {}, VerifiedPeers(tmp_path / name, tmp_path), "run") for k, name in enumerate(names)
    ]
    exchange = sums(room)
    for _ in range(2):
        got, stats = exchange()
        assert (got["logits"] - torch.stack(room.said).mean(dim=0)).abs().max() < 1e-5
        assert stats.left_out == []

    server = SecureExchange(room, names, "test", strict=False, quorum=0.5)
    server._prepare_keys(range(3), RoundStats())
    honest = server._request(server._key_shares, {"": [1.0, 1.0, 1.0]})
    mine = SecureAggregationClient(1, {}, run="run").exchange_keys({"kind": "encryption_key"})["encryption_key"]
    swapped = {**honest["encryption_keys"], "1": {**honest["encryption_keys"]["1"], "key": mine["key"]}}
    with pytest.raises(SecureAggregationError, match="key said to be c1's was not signed by it"):
        room.desks[0].exchange_keys({"kind": "key_shares", "encryption_keys": swapped, "threshold": 2})
    twice = {**honest["encryption_keys"], "2": honest["encryption_keys"]["1"]}
    with pytest.raises(SecureAggregationError, match="two of the keys are said to be one site's"):
        room.desks[0].exchange_keys({"kind": "key_shares", "encryption_keys": twice, "threshold": 2})
    stranger = {**honest["encryption_keys"], "1": {**honest["encryption_keys"]["1"], "name": "c9"}}
    with pytest.raises(SecureAggregationError, match=r"c9's key cannot be checked with .*c9.pub"):
        room.desks[0].exchange_keys({"kind": "key_shares", "encryption_keys": stranger, "threshold": 2})
    other = {**honest["key_shares"], "1": {**honest["key_shares"]["1"], "mask": mine["key"]}}
    with pytest.raises(SecureAggregationError, match="key said to be c1's was not signed by it"):
        room.desks[0].mask_payloads([], {**honest, "key_shares": other})
    room.desks[2].mask_payloads([Payload(logits=room.said[2])], honest)
    with pytest.raises(SecureAggregationError, match="were used before"):
        room.desks[2].mask_payloads([Payload(logits=room.said[2])], honest)


@pytest.mark.parametrize(
    ("demand", "run_as", "fits"), [(True, False, False), ("strict", True, False), (True, True, True)]
)
def test_a_site_may_answer_only_in_secure_sums(
    demand: bool | str, run_as: bool, fits: bool, small: Callable[..., Experiment], tmp_path: Path
) -> None:
    def demanding(courier: Courier) -> None:
        for worker in courier.workers:
            worker.secure = demand  # type: ignore[assignment]

    experiment = small("fedmd", rounds=1, secure=run_as, settings={"sync": "epoch"})
    if fits:
        on_flower(experiment, tmp_path / "sites", prepare=demanding)
        return
    with pytest.raises(QuorumError, match=r"answers only in (strict )?secure sums, and the server asks without one"):
        on_flower(experiment, tmp_path / "sites", prepare=demanding)


def test_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "sums")
    store["key_shares"] = "one"
    store["key_shares"] = "two"
    assert ((tmp_path / "sums" / "key_shares").stat().st_mode & 0o777, dict(store)) == (0o600, {"key_shares": "two"})
    assert (store.pop("key_shares"), store.pop("key_shares", None), len(store)) == ("two", None, 0)


# -- what it costs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
def test_bytes_and_seconds_for_5000_by_10_logits(strict: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """At most twice the plain bytes, and below one second more for everyone together, keys and drop-out included."""
    room = Room(logits(4, 5000))
    exchange = sums(room, strict)
    plain = 4 * room.said[0].numel() * 4
    for what, away in (("first, with keys", set()), ("second", set()), ("with a drop-out", {2})):
        room.away = away
        start = time.perf_counter()
        got, stats = exchange()
        seconds = time.perf_counter() - start
        beside = stats.bytes_down / plain
        with capsys.disabled():
            kind = "strict" if strict else "secure"
            print(
                f"\n{kind} sum, {what}: {stats.bytes_up / plain:.3f} × the plain bytes up, {beside:.3f} × down for "
                f"keys, {seconds:.3f} s, {stats.messages} messages",
                end="",
            )
        assert stats.bytes_up + stats.bytes_down < 2 * plain
        left = [said for k, said in enumerate(room.said) if k not in away]
        assert (got["logits"] - torch.stack(left).mean(dim=0)).abs().max() < 1e-4


def test_means_are_what_mean_says() -> None:
    """`mean` and `weighted_mean` are what a sum can do; nothing else is taken for one."""
    from fedchoir.privacy.eligibility import mean_weights

    assert mean_weights(mean(), 2) == {"": [1.0, 1.0]}
    assert mean_weights(weighted_mean([1, 2])(), 2) == {"": [1, 2]}
    assert mean_weights(by_name(a=mean, b=gather)(), 2) is None
    assert mean_weights(gather(), 2) is None
