"""Combining answers: order, quorum, bad replies, streaming."""

from __future__ import annotations

import random
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch

from fedchoir.core.actions import Exchange, PublicBatch, Round, Step, received_by, received_bytes
from fedchoir.core.aggregation import Gather, Mean, gather, mean, weighted_mean
from fedchoir.core.exchange import Reply, RoundStats, aggregate, in_order
from fedchoir.payload import Payload, sends
from fedchoir.utils.errors import QuorumError


@sends(x="D", note="scalar")
def share(client: Any) -> Payload:
    raise AssertionError("replies come from the test")


def reply(client: int, value: float, size: int = 3) -> Reply:
    return Reply(client, [Payload(x=torch.full((size,), value), scalars={"note": value})])


def join(replies: Iterable[Reply], clients: int, quorum: float = 0.5, **changes: Any) -> tuple[Any, RoundStats]:
    stats = RoundStats()
    names = [f"c{k}" for k in range(clients)]
    ask = Exchange(share, **changes)
    got = aggregate(ask, replies, clients=range(clients), names=names, dims={}, model=None, quorum=quorum, stats=stats)
    return got, stats


def test_mean_and_weighted_mean() -> None:
    got, _ = join([reply(0, 1.0), reply(1, 4.0)], 2)
    assert got["x"].tolist() == [2.5] * 3
    assert got.scalars == {"note": 2.5}
    got, _ = join([reply(0, 1.0), reply(1, 4.0)], 2, aggregator=weighted_mean([3, 1]))
    assert got["x"].tolist() == [1.75] * 3


def test_a_site_that_joins_with_its_answer_has_its_weight() -> None:
    sizes = [3, 0]

    def replies() -> Iterator[Reply]:
        sizes[1] = 1  # it has just told how many images it has
        yield from (reply(0, 1.0), reply(1, 4.0))

    got, _ = join(replies(), 2, aggregator=lambda: Mean(list(sizes)))
    assert got["x"].tolist() == [1.75] * 3


def test_counters_are_averaged_as_whole_numbers() -> None:
    m = Mean([1.0, 2.0])
    for client, count in ((0, 10), (1, 13)):
        m.add(client, [Payload(n=torch.tensor(count))])
    assert m.result()[0]["n"].item() == 12
    assert m.result()[0]["n"].dtype == torch.int64


def test_gather_keeps_every_answer() -> None:
    got, _ = join([reply(0, 1.0), reply(1, 4.0)], 2, aggregator=gather)
    assert {k: p["x"][0].item() for k, p in got.items()} == {0: 1.0, 1: 4.0}
    assert Gather().result() == []


def test_the_mean_does_not_depend_on_who_answers_first() -> None:
    values = [random.Random(3).uniform(-1e6, 1e6) for _ in range(20)]
    replies = [reply(k, v) for k, v in enumerate(values)]
    first, _ = join(replies, 20)
    random.Random(4).shuffle(replies)
    second, _ = join(replies, 20)
    assert torch.equal(first["x"], second["x"])


def test_replies_stream_and_are_not_held() -> None:
    """While one reply is combined, those before it are gone from memory."""
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def answers() -> Iterator[Reply]:
        nonlocal most
        for k in range(50):
            tensor = torch.full((1000,), float(k))
            alive.append(weakref.ref(tensor))
            payload = Payload(scalars={"note": 0.0})
            payload._tensors = {"x": tensor}
            del tensor
            yield Reply(k, [payload])
            del payload
            most = max(most, sum(ref() is not None for ref in alive))

    stats = RoundStats()
    aggregate(
        Exchange(share), answers(), clients=range(50), names=[str(k) for k in range(50)], dims={}, model=None,
        quorum=1.0, stats=stats,
    )  # fmt: skip
    assert most <= 3


def test_bad_replies_are_left_out_and_named() -> None:
    bad = Reply(1, [Payload(x=torch.tensor([float("nan")] * 3), scalars={"note": 0.0})])
    got, stats = join([reply(0, 1.0), bad, Reply(2, error="hung up"), reply(3, 3.0)], 4)
    assert got["x"].tolist() == [2.0] * 3
    assert stats.left_out == [
        {"client": "c1", "exchange": "share", "why": "x is not finite"},
        {"client": "c2", "exchange": "share", "why": "hung up"},
    ]


def test_a_reply_with_too_many_parts_is_left_out() -> None:
    double = Reply(1, [*reply(1, 1.0).parts, *reply(1, 1.0).parts])
    _, stats = join([reply(0, 1.0), double, reply(2, 1.0)], 3)
    assert "sent 2 parts where 1" in stats.left_out[0]["why"]


def test_below_quorum_raises_and_says_who() -> None:
    with pytest.raises(QuorumError, match=r"only 1 of 4 clients gave a usable answer to share.*c1: lost"):
        join([reply(0, 1.0), Reply(1, error="lost")], 4)
    with pytest.raises(QuorumError, match="only 0 of 2"):
        join([], 2, quorum=0.01)


def test_in_order_holds_back_only_what_came_too_early() -> None:
    replies = [Reply(2), Reply(0), Reply(1), Reply(4)]
    assert [r.client for r in in_order(replies, range(5))] == [0, 1, 2, 4]


def test_public_batches_cover_the_set_once() -> None:
    r = Round(index=3, rounds=5, clients=(0,), public_size=10, public_batch=4, public_epochs=2)
    groups = list(r.public_batches())
    assert [g[0].size for g in groups] == [4, 4, 2, 4, 4, 2]
    assert all(len(g) == 1 for g in groups)
    whole = list(Round(3, 5, (0,), 10, 4, sync="epoch").public_batches())
    assert [[b.size for b in g] for g in whole] == [[4, 4, 2]]
    assert [b.size for (b,) in Round(0, 1, (0,), 10, 4, drop_last=True).public_batches()] == [4, 4]
    assert [b.size for (b,) in Round(0, 1, (0,), 9, 4).public_batches()] == [4, 4]  # one image cannot be normalised
    assert [b.size for (b,) in Round(0, 1, (0,), 3, 512, drop_last=True).public_batches()] == [3]


def test_who_hears_what() -> None:
    one, other = Payload(x=torch.ones(2)), Payload(x=torch.ones(4))
    assert received_by(one, 5, 0) is one
    assert received_by([one, other], 5, 1) is other
    assert received_by({5: other}, 5, 0) is other
    assert received_by({5: other}, 4, 0) is None
    by_name = [{5: one}, {5: other, 4: one}]  # one a client and batch
    assert (received_by(by_name, 5, 1), received_by(by_name, 4, 0)) == (other, None)
    assert [received_bytes(by_name, k) for k in (5, 4, 3)] == [24, 8, 0]
    assert [received_bytes(h, 5) for h in (None, one, [one, other], {5: other}, {4: one})] == [0, 8, 24, 16, 0]


def test_ledger_counts_down_traffic_for_each_client() -> None:
    stats = RoundStats()
    batch = PublicBatch(0, 0, 0, 0, 4)
    stats.sent([Step(share, (batch,), [Payload(x=torch.ones(2))]), Exchange(share)], (0, 1, 2))
    assert (stats.messages, stats.bytes_down) == (3, 24)


def test_mean_of_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one client"):
        mean().result()


def test_the_loss_of_a_round_is_the_mean_over_all_that_was_reported() -> None:
    stats = RoundStats()
    for value in (4.0, 2.0, 3.0):
        stats.came(Reply(0, report={"public_loss": value}), "a")
    stats.came(Reply(0, report={"local_loss": 7.0}), "a")
    assert stats.losses == {"a": {"public_loss": 3.0, "local_loss": 7.0}}
