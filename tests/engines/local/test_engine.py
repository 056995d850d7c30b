"""The local engine: order of actions, evaluation, progress and time."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from tests.engines.many_clients import ManyClients

from fedchoir import methods
from fedchoir.core.actions import Exchange, Step
from fedchoir.core.client import Client
from fedchoir.core.scores import Detail, TestScore
from fedchoir.core.training import EagerTrainer
from fedchoir.data.image.image_set import ImageSet
from fedchoir.engines.local.cuda_graphs import CudaGraphTrainer
from fedchoir.engines.local.engine import fast_trainer
from fedchoir.methods.base import Method
from fedchoir.methods.fedavg import FedAvg


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of clients that are evaluated."""
    names: list[str] = []
    evaluate = Method.evaluate

    def recorded(
        self: Method, client: Client, tests: Iterable[ImageSet], detail: Detail = "accuracy"
    ) -> list[TestScore]:
        names.append(client.name)
        return evaluate(self, client, tests, detail)

    monkeypatch.setattr(Method, "evaluate", recorded)
    return names


def test_actions_run_client_by_client_and_the_last_payloads_come_back() -> None:
    federation = ManyClients(FedAvg, 4)
    method, engine = federation.method, federation.engine
    steps: list[tuple[str, str]] = []
    engine._progress = lambda client, phase: steps.append((client, phase))
    replies = list(engine.execute([2, 0], [Step(method.local_update), Exchange(method.upload)], 0))
    assert steps == [(name, phase) for name in ("c2", "c0") for phase in ("local_update", "upload")]
    assert [reply.client for reply in replies] == [2, 0]
    for reply in replies:
        (payload,) = reply.payloads
        weights = engine.clients[reply.client].model.state_dict()
        assert all(torch.equal(payload[f"weights/{n}"], t) for n, t in weights.items())
        assert reply.report["local_loss"] > 0
    assert engine.seconds["local"] > 0
    assert engine.seconds["public"] == 0


def test_own_models_are_evaluated_again_only_after_a_change(evaluated: list[str]) -> None:
    federation = ManyClients(methods.get("solo"), 30)
    federation.run_rounds(1)
    assert evaluated == [f"c{k}" for k in range(30)]
    evaluated.clear()
    (event,) = federation.run_rounds(1)
    assert evaluated == event["clients"]
    again = [federation.method.evaluate(c, [federation.test]) for c in federation.clients]
    assert event["accuracy"] == [[score.accuracy] for (score,) in again]


def test_a_global_model_is_evaluated_once_and_the_clients_keep_their_own(evaluated: list[str]) -> None:
    federation = ManyClients(FedAvg, 6)
    weights = {n: torch.zeros_like(t) for n, t in federation.clients[0].snapshot().items()}
    before = [client.snapshot() for client in federation.clients]
    found = federation.engine.evaluate(weights, 0, "metrics")
    assert [e.tests[0].metrics["accuracy"] for e in found] == [25.0] * 6  # all logits are zero: class 0 of 4
    assert [e.tests[0].metrics["auroc"] for e in found] == [50.0] * 6
    assert evaluated == ["c0"]
    for client, state in zip(federation.clients, before, strict=True):
        assert all(torch.equal(t, state[n]) for n, t in client.snapshot().items())


def test_model_shapes_are_those_of_the_shared_architecture() -> None:
    federation = ManyClients(FedAvg, 3)
    expected = federation.clients[1].model.state_dict()
    shapes = federation.method.model_shapes(1)
    assert shapes is not None
    assert {n: t.shape for n, t in shapes.items()} == {n: t.shape for n, t in expected.items()}


@pytest.mark.parametrize(("device", "trainer"), [("cpu", EagerTrainer), ("cuda", CudaGraphTrainer)])
def test_the_trainer_follows_the_device(device: str, trainer: type) -> None:
    assert type(fast_trainer(torch.device(device))) is trainer


def test_clients_of_other_processes_are_not_evaluated() -> None:
    federation = ManyClients(methods.get("solo"), 4)
    federation.engine.clients.indices = (1, 3)
    assert len(federation.engine.evaluate(None, 0, "accuracy")) == 2
