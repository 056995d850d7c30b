"""The sequence of actions that a site expects is the one that a run really has, for every method."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import pytest
import torch
from tests.conftest import VARIANTS

from fedchoir import Experiment, methods, run
from fedchoir.core.actions import Action
from fedchoir.core.exchange import Reply
from fedchoir.core.script import ActionName, action_name, action_sequences
from fedchoir.engines.local.engine import LocalEngine

ROUNDS = 3
OPTIONS = {"fraction": ("fedavg", {"fraction": 0.5}), "sync": ("fccl+", {"sync": "epoch"})}
PARTLY = {
    "averaged": ("fccl+", {"average": "after-local"}, ("resnet10@4",)),
    "colors": ("choir-v1", {"recolor": "exchanged"}, None),
}


def recorded(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[list[ActionName]], list[list[ActionName]]]:
    """The actions of a run by round, and those that its method's script announces without data."""
    seen: list[list[ActionName]] = [[] for _ in range(ROUNDS)]
    announced: list[list[ActionName]] = []
    execute = LocalEngine.execute

    def spy(self: LocalEngine, clients: Sequence[int], actions: Sequence[Action], index: int) -> Iterator[Reply]:
        if not announced:
            announced.extend(islice(action_sequences(self.method), ROUNDS))
        seen[index] += [action_name(action) for action in actions]
        yield from execute(self, clients, actions, index)

    monkeypatch.setattr(LocalEngine, "execute", spy)
    run(experiment)
    return seen, announced


@pytest.mark.parametrize("name", [*methods.registry(), *VARIANTS])
def test_every_method_does_what_its_script_announces(
    name: str, small: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, announced = recorded(small(name, rounds=ROUNDS), monkeypatch)
    assert announced == seen


@pytest.mark.parametrize(("name", "settings"), OPTIONS.values(), ids=list(OPTIONS))
def test_with_options_that_change_the_sequence(
    name: str, settings: dict[str, object], small: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, announced = recorded(small(name, rounds=ROUNDS, settings=settings), monkeypatch)
    assert announced == seen


@pytest.mark.parametrize(("name", "settings", "models"), PARTLY.values(), ids=list(PARTLY))
def test_with_shared_architectures_and_first_round_exchanges(
    name: str,
    settings: dict[str, object],
    models: tuple[str, ...] | None,
    small: Callable[..., Experiment],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changes = {"models": models} if models else {}
    seen, announced = recorded(small(name, rounds=ROUNDS, settings=settings, **changes), monkeypatch)
    assert announced == seen


def test_the_method_is_not_changed(small: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch) -> None:
    servers = []
    execute = LocalEngine.execute

    def spy(self: LocalEngine, clients: Sequence[int], actions: Sequence[Action], index: int) -> Iterator[Reply]:
        before = dict(self.method.server)
        list(islice(action_sequences(self.method), ROUNDS))
        servers.append(all(torch.equal(before[k], v) for k, v in self.method.server.items()))
        yield from execute(self, clients, actions, index)

    monkeypatch.setattr(LocalEngine, "execute", spy)
    run(small("fedavg", rounds=2))
    assert servers
    assert all(servers)


def test_names_survive_json() -> None:
    name = ActionName("exchange", "share", ((0, 0, 1, 16, 16), (0, 0, 2, 32, 8)), (("D", 8),))
    assert ActionName.read(json.loads(json.dumps(name))) == name
