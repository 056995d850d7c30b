"""One exchange on the server: order, quorum, unusable replies, streaming, traffic."""

from __future__ import annotations

import random
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch

from fedchoir.core.actions import Exchange, PublicBatch, Step
from fedchoir.core.aggregation import Mean, gather, weighted_mean
from fedchoir.core.exchange import Reply, RoundStats, aggregate, find_fault, in_order
from fedchoir.core.outliers import HELD
from fedchoir.core.robust import defended
from fedchoir.payload import MODEL, MODULE, Payload, sends, state_payload
from fedchoir.utils.errors import QuorumError


@sends(x="D", note="scalar")
def share(client: Any) -> Payload:
    raise AssertionError("replies come from the test")


def reply(client: int, value: float, size: int = 3) -> Reply:
    return Reply(client, [Payload(x=torch.full((size,), value), scalars={"note": value})])


def collect(replies: Iterable[Reply], clients: int, quorum: float = 0.5, **changes: Any) -> tuple[Any, RoundStats]:
    """The aggregate of the replies and the statistics of the round."""
    stats, names, exchange = RoundStats(), [f"c{k}" for k in range(clients)], Exchange(share, **changes)
    aggregated = aggregate(
        exchange, replies, clients=range(clients), names=names, quorum=quorum, stats=stats,
        fault=lambda reply: find_fault(reply, exchange, {}, None),
    )  # fmt: skip
    return aggregated, stats


def test_mean_and_weighted_mean() -> None:
    aggregated, _ = collect([reply(0, 1.0), reply(1, 4.0)], 2)
    assert aggregated["x"].tolist() == [2.5] * 3
    assert aggregated.scalars == {"note": 2.5}
    aggregated, _ = collect([reply(0, 1.0), reply(1, 4.0)], 2, aggregator=weighted_mean([3, 1]))
    assert aggregated["x"].tolist() == [1.75] * 3


def test_gather_returns_every_payload_by_client() -> None:
    aggregated, _ = collect([reply(0, 1.0), reply(1, 4.0)], 2, aggregator=gather)
    assert {k: p["x"][0].item() for k, p in aggregated.items()} == {0: 1.0, 1: 4.0}


def test_one_aggregate_per_public_batch() -> None:
    batches = (PublicBatch(0, 0, 0, 0, 4), PublicBatch(0, 0, 1, 4, 4))
    both = [Reply(k, [*reply(k, 1.0 + k).payloads, *reply(k, 5.0 + k).payloads]) for k in range(2)]
    aggregated, _ = collect(both, 2, batches=batches)
    assert [p["x"][0].item() for p in aggregated] == [1.5, 5.5]


def test_a_site_that_joins_with_its_reply_has_its_weight() -> None:
    sizes = [3, 0]

    def replies() -> Iterator[Reply]:
        sizes[1] = 1  # the number of samples arrives with the reply
        yield from (reply(0, 1.0), reply(1, 4.0))

    aggregated, _ = collect(replies(), 2, aggregator=lambda: Mean(list(sizes)))
    assert aggregated["x"].tolist() == [1.75] * 3


def test_the_mean_does_not_depend_on_who_replies_first() -> None:
    values = [random.Random(3).uniform(-1e6, 1e6) for _ in range(20)]
    replies = [reply(k, v) for k, v in enumerate(values)]
    first, _ = collect(replies, 20)
    random.Random(4).shuffle(replies)
    second, _ = collect(replies, 20)
    assert torch.equal(first["x"], second["x"])


def test_replies_stream_and_are_not_stored() -> None:
    """While one reply is aggregated, those before it are gone from memory. The first ones are compared first."""
    alive: list[weakref.ref[torch.Tensor]] = []
    most: list[int] = []

    def replies() -> Iterator[Reply]:
        for k in range(50):
            tensor = torch.full((1000,), float(k))
            alive.append(weakref.ref(tensor))
            payload = Payload(scalars={"note": 0.0})
            payload._tensors = {"x": tensor}
            del tensor
            yield Reply(k, [payload])
            del payload
            most.append(sum(ref() is not None for ref in alive))

    collect(replies(), 50, quorum=1.0)
    assert max(most) <= HELD + 1
    assert max(most[HELD + 1 :]) <= 3


def test_unusable_replies_are_left_out_and_named() -> None:
    bad = Reply(1, [Payload(x=torch.tensor([float("nan")] * 3), scalars={"note": 0.0})])
    aggregated, stats = collect([reply(0, 1.0), bad, Reply(2, error="hung up"), reply(3, 3.0)], 4)
    assert aggregated["x"].tolist() == [2.0] * 3
    assert stats.left_out == [
        {"client": "c1", "exchange": "share", "why": "x is not finite"},
        {"client": "c2", "exchange": "share", "why": "hung up"},
    ]


def test_a_reply_with_too_many_payloads_is_left_out() -> None:
    double = Reply(1, [*reply(1, 1.0).payloads, *reply(1, 1.0).payloads])
    _, stats = collect([reply(0, 1.0), double, reply(2, 1.0)], 3)
    assert "sent 2 payloads where 1" in stats.left_out[0]["why"]


def test_weights_and_modules_are_checked_against_their_shapes() -> None:
    @sends(weights=MODEL, head=MODULE)
    def upload(client: Any) -> Payload: ...

    model, modules = torch.nn.Linear(3, 2).state_dict(), {"head.weight": torch.ones(2, 2)}
    good = Payload({**state_payload("weights", model), "head/weight": torch.ones(2, 2)})
    bad = Payload({**good, "head/weight": torch.ones(2, 3)})
    exchange = Exchange(upload)
    assert find_fault(Reply(0, [good]), exchange, {}, model, modules) == ""
    assert "head/weight has shape (2, 3)" in find_fault(Reply(0, [bad]), exchange, {}, model, modules)
    assert "different ones" in find_fault(Reply(0, [good]), exchange, {}, None, modules)


def test_below_quorum_it_raises_and_names_the_clients() -> None:
    with pytest.raises(QuorumError, match=r"only 1 of 4 clients sent a usable payload for share.*c1: lost"):
        collect([reply(0, 1.0), Reply(1, error="lost")], 4)
    with pytest.raises(QuorumError, match=r"only 0 of 2 .*no reply in time"):
        collect([], 2, quorum=0.01)


def test_the_quorum_is_a_share_of_the_clients() -> None:
    replies = [reply(k, 1.0) for k in range(3)]
    assert collect(replies, 4, quorum=0.75)[0]["x"].tolist() == [1.0] * 3
    with pytest.raises(QuorumError, match="quorum is 76%"):
        collect(replies, 4, quorum=0.76)


def test_a_defence_replaces_the_aggregator() -> None:
    stats, exchange = RoundStats(), Exchange(share)
    aggregated = aggregate(
        exchange, [reply(0, 1.0), reply(1, 2.0), reply(2, 900.0)], clients=range(3), names="abc", quorum=0.5,
        stats=stats, fault=lambda reply: "", defence=lambda aggregator: defended(aggregator, "median", 0.2),
    )  # fmt: skip
    assert aggregated["x"].tolist() == [2.0] * 3


def test_only_replies_that_arrive_early_are_held_back() -> None:
    replies = [Reply(2), Reply(0), Reply(1), Reply(4)]
    assert [r.client for r in in_order(replies, range(5))] == [0, 1, 2, 4]
    arrived: list[int] = []
    ordered = in_order((arrived.append(k) or Reply(k) for k in range(3)), range(3))
    assert next(ordered).client == 0
    assert arrived == [0]


# -- traffic and losses ------------------------------------------------------------------------------------------------


def test_downlink_bytes_are_counted_for_each_client() -> None:
    stats = RoundStats()
    batch = PublicBatch(0, 0, 0, 0, 4)
    stats.add_message([Step(share, (batch,), [Payload(x=torch.ones(2))]), Exchange(share)], (0, 1, 2))
    assert (stats.messages, stats.bytes_down) == (3, 24)
    stats.add_downlink([Step(share, received={1: Payload(x=torch.ones(2))})], (0, 1))
    assert (stats.messages, stats.bytes_down) == (3, 32)


def test_uplink_bytes_are_those_of_all_payloads() -> None:
    _, stats = collect([reply(0, 1.0), Reply(1, error="lost"), reply(2, 1.0)], 3)
    assert stats.bytes_up == 2 * (3 * 4 + 8)


def test_the_loss_of_a_round_is_the_mean_over_all_reports() -> None:
    stats = RoundStats()
    for value in (4.0, 2.0, 3.0):
        stats.add_reply(Reply(0, report={"public_loss": value}), "a")
    stats.add_reply(Reply(0, report={"local_loss": 7.0}), "a")
    assert stats.losses == {"a": {"public_loss": 3.0, "local_loss": 7.0}}
