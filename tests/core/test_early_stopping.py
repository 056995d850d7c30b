"""What the server asks for in each round, and when it stops early: a tiny method and an engine without models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.core.fake_engine import TESTS, FakeDeferringEngine, FakeEngine, TinyMethod

from fedchoir.core.result import Event
from fedchoir.core.scores import Validation
from fedchoir.core.server import Server
from fedchoir.utils.errors import UsageError

ENGINES = [FakeEngine, FakeDeferringEngine]


def server_of(engine: FakeEngine, metric: str = "accuracy", folder: Path | None = None, **settings: Any) -> Server:
    method = TinyMethod(rounds=8, **settings)
    method.spec = replace(method.spec, metric=metric)
    return Server(method, engine, TESTS, folder=folder)  # type: ignore[arg-type]


def play(server: Server) -> list[Event]:
    return [event for events in server.rounds() for event in events]


def improving(engine: FakeEngine, rounds: dict[int, set[int]]) -> None:
    """Let clients improve in some rounds: client → rounds."""
    for k, better in rounds.items():
        best = None
        for index in range(8):
            best = index if index in better else best
            engine.validation[index, k] = Validation(50.0, best)


@pytest.mark.parametrize("engine", ENGINES)
def test_all_metrics_in_the_last_three_rounds_and_intervals_in_the_last(engine: Callable[[], FakeEngine]) -> None:
    made = engine()
    events = play(server_of(made))
    assert made.details == ["accuracy"] * 5 + ["metrics"] * 2 + ["intervals"]
    assert [event["round"] for event in events if "metrics" in event] == [5, 6, 7]
    assert not any("headline" in event for event in events)


def test_another_headline_is_computed_in_every_evaluated_round() -> None:
    engine = FakeEngine()
    events = play(server_of(engine, "auroc", evaluate_every=4))
    assert engine.details == ["metrics"] * 3 + ["intervals"]
    shown = [event["headline"] for event in events if "headline" in event]
    assert len(shown) == 4
    assert shown[-1] == {"metric": "auroc", **{key: events[-1][key] for key in ("intra_avg", "inter_avg")}}


@pytest.mark.parametrize("engine", ENGINES)
def test_the_run_ends_when_no_client_has_improved(engine: Callable[[], FakeEngine]) -> None:
    made = engine()
    improving(made, {0: {0}, 1: {0, 1, 3}, 2: set()})
    server = server_of(made, validation=0.2, early_stopping=2)
    events = play(server)
    assert [event["round"] for event in events] == [0, 1, 2, 3, 4, 5]
    assert "stopped early after round 6 of 8: no client improved the accuracy" in server.notes[0]
    assert made.details[-1] == "intervals"  # the run could end here
    assert events[5]["validation"][1] == {"score": 50.0, "best_round": 3}


def test_clients_whose_validation_score_is_not_defined_do_not_count() -> None:
    engine = FakeEngine()
    engine.validation = {(index, k): Validation(None, None) for index in range(8) for k in range(3)}
    assert len(play(server_of(engine, validation=0.2, early_stopping=1))) == 8


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("stopped", [1, 4, 6])
def test_a_resumed_run_stops_in_the_same_round(engine: Callable[[], FakeEngine], stopped: int, tmp_path: Path) -> None:
    def fresh() -> FakeEngine:
        made = engine()
        improving(made, {0: {0}, 1: {0, 1, 3}})
        return made

    options: dict[str, Any] = {"validation": 0.2, "early_stopping": 2, "folder": tmp_path}
    first = server_of(fresh(), **options)
    rounds = first.rounds()
    for _ in range(stopped):
        next(rounds)
        first.save()
    again = server_of(fresh(), **options)
    assert again.resume()
    assert again.next_round + len(play(again)) == 6
    assert len(again.notes) == 1


def test_early_stopping_needs_a_validation_share() -> None:
    with pytest.raises(UsageError, match="early_stopping = 3 is not possible without a validation share"):
        TinyMethod(early_stopping=3)
