"""Whole runs under label skew: many clients, accuracies on own shares of the test set."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.helpers import events

from fedchoir import Experiment, Result, run
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.prepare import prepare


@pytest.mark.parametrize(("name", "fraction", "count"), [("fedct", 0.3, 30), ("fedavg", 0.5, 50)])
def test_a_hundred_clients_of_which_some_take_part(
    name: str, fraction: float, count: int, skew: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[int] = []
    score = LocalEngine.evaluate_global
    monkeypatch.setattr(LocalEngine, "evaluate_global", lambda *args: scored.append(len(args[2])) or score(*args))
    experiment = skew(name, rounds=1, clients=100, fraction=fraction, beta=0.5)
    result = run(experiment)
    assert len(events(experiment.out)[0]["clients"]) == count
    assert len(result.own) == len(result.accuracy) == 100
    assert all(0 <= value <= 100 for value in result.own)
    assert scored == [101]  # one model, on the global test set and on 100 shares of it


def test_a_starved_draw_ends_and_is_reported(skew: Callable[..., Experiment]) -> None:
    result = run(skew("fedavg", rounds=1, clients=200, beta=0.05, fraction=0.01))
    assert len(result.clients) == 200
    assert min(client["train"] for client in result.clients) >= 2
    assert any("moved to them" in note for note in result.notes)


def test_own_accuracies_are_those_of_the_global_model_on_each_share(skew: Callable[..., Experiment]) -> None:
    """The shares make up the test set, so their accuracies, weighted by size, are the global accuracy."""
    experiment = skew("fedct", rounds=1, beta=0.3)
    result: Result = run(experiment)
    (event,) = events(experiment.out)
    assert event["own"] == result.own
    shares = [len(test) for test in prepare(make_plan(experiment))[1].own_tests.values()]
    assert sum(shares) == 80
    weighted = sum(n * value for n, value in zip(shares, result.own, strict=True)) / sum(shares)
    assert weighted == pytest.approx(result.accuracy[0][0])
    assert len({*map(tuple, result.accuracy)}) == 1


def test_shares_of_the_tests_in_several_processes(skew: Callable[..., Experiment]) -> None:
    """The global test set and the clients' shares of it are scored in different processes."""
    alone, together = skew("fedct", "alone", rounds=1), skew("fedct", "together", rounds=1)
    run(alone), run(together.model_copy(update={"devices": ("cpu", "cpu", "cpu")}))
    one, two = ({k: v for k, v in events(e.out)[0].items() if k != "seconds"} for e in (alone, together))
    assert one == two


def test_without_shares_of_the_tests_there_is_no_own(play: Callable[..., Result]) -> None:
    assert play("fedavg", rounds=1).own == []
