"""Clients that join late: set up before their first round, without any effect on the state of the server."""

from __future__ import annotations

from dataclasses import replace

import torch
from tests.core.fake_engine import TESTS, FakeEngine, TinyMethod

from fedchoir.core.actions import Exchange, Script, Step
from fedchoir.core.result import Event
from fedchoir.core.server import Server


class ResettingMethod(TinyMethod):
    """Its setup gives the server a new state, as FedNova's does."""

    def setup(self) -> Script:
        self.server = {"total": torch.zeros(1)}
        yield Step(self.prepare)
        self.server["total"] = yield Exchange(self.share)
        self.server["total"] = torch.full((1,), 100.0)


def run(method: TinyMethod, joins: tuple[int, ...]) -> tuple[list[Event], FakeEngine]:
    method.spec = replace(method.spec, joins=joins)
    engine = FakeEngine()
    return [event for events in Server(method, engine, TESTS).rounds() for event in events], engine


def test_a_late_client_is_set_up_and_takes_part_from_its_first_round() -> None:
    events, engine = run(TinyMethod(), (0, 2, 0))
    assert [event["clients"] for event in events] == [["c0", "c2"], ["c0", "c2"], ["c0", "c1", "c2"]]
    prepared = [(index, clients) for index, clients, names in engine.messages if "prepare" in names]
    assert prepared == [(0, (0, 2)), (2, (1,))]
    assert not any(1 in clients for index, clients, _ in engine.messages if index < 2)


def test_a_late_setup_does_not_change_the_server() -> None:
    method = ResettingMethod()
    events, _ = run(method, (0, 1, 0))
    totals = [event["measures"]["total"] for event in events]
    assert totals[0] > 100
    assert totals == sorted(totals)
    assert float(method.server["total"]) == totals[-1]


def test_without_late_clients_nothing_changes() -> None:
    usual, engine = run(TinyMethod(), ())
    explicit, other = run(TinyMethod(), (0, 0, 0))
    assert engine.messages == other.messages
    assert [e["measures"] for e in usual] == [e["measures"] for e in explicit]
