"""The replaying trainer against the plain one. On a CPU a recorded step is run again instead of replayed: all the rest
(fixed inputs, kept optimisers, warm-ups undone, steps used again) is the same code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.helpers import numbers

from fedchoir import Experiment, methods, run
from fedchoir.core.client import Client
from fedchoir.core.training import Batch
from fedchoir.engines.local.cuda_graphs import CudaGraphTrainer, record_plainly
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.run import prepare

NAMES = list(methods.registry())


@pytest.mark.parametrize("name", NAMES)
def test_every_method_gives_the_same_numbers(
    name: str, small: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, replayed = small(name, "plain", rounds=3), small(name, "replayed", rounds=3)
    run(plain)
    trainers: list[CudaGraphTrainer] = []
    build = LocalEngine.__init__

    def with_replay(self: LocalEngine, *arguments: Any, **options: Any) -> None:
        build(self, *arguments, **options)
        trainers.append(CudaGraphTrainer(record=record_plainly))
        for client in self.clients:
            client.trainer = trainers[0]

    monkeypatch.setattr(LocalEngine, "__init__", with_replay)
    run(replayed)
    assert numbers(plain) == numbers(replayed)


class Probe:
    """A method's loss that counts how often it is recorded."""

    def __init__(self) -> None:
        self.calls = 0
        self.look_at_round = False

    def loss(self, client: Client, batch: Batch) -> torch.Tensor:
        self.calls += 1
        factor = client.round if self.look_at_round else 1.0
        bonus = sum(t.sum() for t in client.memory.tensors() if t.dtype == torch.float32)
        return client.logits(batch.images).square().mean() * factor + 0 * bonus


@pytest.fixture
def client(small: Callable[..., Experiment]) -> Client:
    experiment = small("solo")
    method, scenario, _ = prepare(make_plan(experiment))
    made = LocalEngine(method, scenario, None, device=torch.device("cpu")).clients[0]
    made.trainer = CudaGraphTrainer(record=lambda run: lambda: None)  # a replay that does nothing: only records count
    return made


def test_an_answer_is_the_plain_one_and_sees_todays_weights(client: Client) -> None:
    """A pass is captured once for each shape and each setting of the layers."""
    recorded = []

    def record(run: Any) -> Any:
        recorded.append(run)
        return run

    client.trainer = CudaGraphTrainer(record=record)
    images = [torch.randn(size, 3, 16, 16) for size in (8, 8, 8, 5, 5)]
    for batch, so_far in zip(images, (0, 1, 1, 1, 2), strict=True):  # the first of a kind is run plainly
        with client.batch_stats_frozen():
            expected = client.features_and_logits(batch)
            found = client.trainer.forward(client, batch)
        assert all(map(torch.equal, found, expected))
        assert len(recorded) == so_far
        with torch.no_grad():
            next(client.model.parameters()).mul_(0.9)
    client.model.eval()
    with torch.no_grad():
        for _ in range(2):
            assert all(
                map(torch.equal, client.trainer.forward(client, images[0]), client.features_and_logits(images[0]))
            )
    assert len(recorded) == 3
    client.trainer.release(client)
    assert not client.trainer._passes.captured


def test_a_frozen_model_answers_the_same_and_is_captured_when_it_is_asked_again(client: Client) -> None:
    recorded: list[Any] = []

    def record(run: Any) -> Any:
        recorded.append(run)
        return run

    frozen = client.frozen_copy(client.snapshot())
    quick = CudaGraphTrainer(record=record).accelerated(frozen)
    for size, so_far in ((8, 0), (8, 1), (8, 1), (5, 1), (5, 2)):
        images = torch.randn(size, 3, 16, 16)
        assert torch.equal(quick(images), frozen(images))
        assert len(recorded) == so_far


def test_recording_leaves_the_draws_of_dropout_alone(client: Client) -> None:
    client.trainer = CudaGraphTrainer(record=record_plainly)
    client.model.head = torch.nn.Sequential(torch.nn.Dropout(0.5), client.model.head)
    batch = torch.randn(8, 3, 16, 16)
    results = []
    for _ in range(2):  # the second time it is recorded
        torch.manual_seed(3)
        with client.batch_stats_frozen():
            results.append(client.trainer.forward(client, batch)[1])
    assert torch.equal(*results)


def test_a_step_is_recorded_once_for_each_shape(client: Client) -> None:
    probe = Probe()
    client.train(probe.loss)
    first = probe.calls
    assert first == 2  # 48 images in batches of 16: one shape; two warm-ups
    client.begin(1)
    client.memory["x"] = torch.ones(3)
    client.train(probe.loss)
    assert probe.calls == 2 * first  # something new to remember: recorded again
    client.begin(2)
    client.memory["x"] = torch.zeros(3)
    client.train(probe.loss)
    assert probe.calls == 2 * first  # in the same place: not recorded again


def test_a_loss_that_looks_at_the_round_is_recorded_every_round(client: Client) -> None:
    probe = Probe()
    probe.look_at_round = True
    for index in range(3):
        client.begin(index)
        client.train(probe.loss)
    assert probe.calls == 3 * 2


def test_functions_made_on_the_spot_are_never_recorded(client: Client) -> None:
    calls = []
    client.train(lambda k, b: calls.append(1) or k.logits(b.images).square().mean(), epochs=1)
    assert len(calls) == 3


def test_what_cannot_be_captured_runs_plainly(client: Client) -> None:
    def refuse(run: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    client.trainer = CudaGraphTrainer(record=refuse)
    probe = Probe()
    before = client.snapshot()
    client.train(probe.loss, epochs=2)
    assert probe.calls == 2 + 6
    assert any(not torch.equal(before[n], t) for n, t in client.snapshot().items())


def test_a_full_gpu_is_no_reason_to_run_plainly(client: Client) -> None:
    def full(run: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    client.trainer = CudaGraphTrainer(record=full)
    with pytest.raises(torch.OutOfMemoryError):
        client.train(Probe().loss, epochs=2)
