"""The capturing trainer against the eager one. On a CPU a captured step is run again instead of replayed; everything
else (static inputs, reused optimizers, undone warm-ups, reused steps) is the same code as on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.helpers import equal, numbers

from fedchoir import Experiment, methods, run
from fedchoir.core.client import Client
from fedchoir.core.training import Batch
from fedchoir.engines.local import engine
from fedchoir.engines.local.cuda_graphs import CudaGraphTrainer
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.prepare import prepare


def run_again(step: Callable[[], None]) -> Callable[[], None]:
    """A capture whose replay runs the function again."""
    return step


@pytest.mark.parametrize("name", list(methods.registry()))
def test_every_method_gives_the_same_numbers(
    name: str, small: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    eager, replayed = small(name, "eager", rounds=3), small(name, "replayed", rounds=3)
    run(eager)
    monkeypatch.setattr(engine, "fast_trainer", lambda *_: CudaGraphTrainer(capture=run_again))
    run(replayed)
    assert numbers(eager) == numbers(replayed)


class Probe:
    """A loss that counts its calls: two warm-ups per capture, since a replay does nothing here."""

    def __init__(self, *, read_round: bool = False) -> None:
        self.calls = 0
        self.read_round = read_round

    def loss(self, client: Client, batch: Batch) -> torch.Tensor:
        self.calls += 1
        factor = client.round if self.read_round else 1.0
        stored = sum(t.sum() for t in client.memory.tensors() if t.dtype == torch.float32)
        return client.logits(batch.inputs).square().mean() * factor + 0 * stored


@pytest.fixture
def client(small: Callable[..., Experiment]) -> Client:
    method, scenario, _ = prepare(make_plan(small("solo")))
    made = engine.LocalEngine(method, scenario, None, device=torch.device("cpu")).clients[0]
    made.trainer = CudaGraphTrainer(capture=lambda run: lambda: None)
    return made


@pytest.fixture
def captured() -> list[Any]:
    """What was captured by `capture`."""
    return []


@pytest.fixture
def capture(captured: list[Any]) -> Callable[[Any], Any]:
    return lambda run: captured.append(run) or run


def test_a_captured_forward_pass_is_the_eager_one_with_the_current_weights(
    client: Client, capture: Any, captured: list[Any]
) -> None:
    """A pass is captured once for each shape and each mode of the layers."""
    client.trainer = CudaGraphTrainer(capture=capture)
    images = [torch.randn(size, 3, 16, 16) for size in (8, 8, 8, 5, 5)]
    for batch, count in zip(images, (0, 1, 1, 1, 2), strict=True):  # the first of a kind runs eagerly
        with client.batch_stats_frozen():
            expected = client.features_and_logits(batch)
            outputs = client.trainer.forward(client, batch)
        assert all(map(torch.equal, outputs, expected))
        assert len(captured) == count
        with torch.no_grad():
            next(client.model.parameters()).mul_(0.9)
    client.model.eval()
    with torch.no_grad():
        for _ in range(2):
            outputs = client.trainer.forward(client, images[0])
            assert all(map(torch.equal, outputs, client.features_and_logits(images[0])))
        assert len(captured) == 3
        client.trainer.release(client)
        for _ in range(2):
            client.trainer.forward(client, images[0])
    assert len(captured) == 4  # after a release it is captured again


def test_a_frozen_model_is_captured_at_its_second_use(client: Client, capture: Any, captured: list[Any]) -> None:
    frozen = client.frozen_copy(client.snapshot())
    accelerated = CudaGraphTrainer(capture=capture).accelerated(frozen)
    for size, count in ((8, 0), (8, 1), (8, 1), (5, 1), (5, 2)):
        images = torch.randn(size, 3, 16, 16)
        assert torch.equal(accelerated(images), frozen(images))
        assert len(captured) == count


def test_a_capture_does_not_change_the_random_state(client: Client) -> None:
    client.trainer = CudaGraphTrainer(capture=run_again)
    client.model.head = torch.nn.Sequential(torch.nn.Dropout(0.5), client.model.head)
    batch = torch.randn(8, 3, 16, 16)
    results = []
    for _ in range(2):  # the second pass is captured
        torch.manual_seed(3)
        with client.batch_stats_frozen():
            results.append(client.trainer.forward(client, batch)[1])
    assert torch.equal(*results)


def test_a_step_is_captured_once_per_shape(client: Client) -> None:
    probe = Probe()
    client.train(probe.loss)
    assert probe.calls == 2  # 48 images in batches of 16: one shape
    client.begin(1)
    client.memory["x"] = torch.ones(3)
    client.train(probe.loss)
    assert probe.calls == 4  # a new stored tensor: captured again
    client.begin(2)
    client.memory["x"] = torch.zeros(3)
    client.train(probe.loss)
    assert probe.calls == 4  # the same address: reused


def test_a_loss_that_reads_the_round_is_captured_every_round(client: Client) -> None:
    probe = Probe(read_round=True)
    for index in range(3):
        client.begin(index)
        client.train(probe.loss)
    assert probe.calls == 3 * 2


def test_steps_of_sizes_that_no_longer_come_are_forgotten(client: Client) -> None:
    """Choir's batches have another size in every round. A size that comes back within a round is not captured again."""
    probe, trainer = Probe(), client.trainer
    assert isinstance(trainer, CudaGraphTrainer)
    calls = []
    for r, sizes in enumerate([(8, 5), (7, 5), (6, 5), (8, 5)]):
        client.begin(r)
        optimizer = trainer.optimizer(client, "local", "adam", lr=0.1, weight_decay=0.0, momentum=0.0)
        for size in sizes:
            batch = Batch(torch.randn(size, 3, 16, 16), torch.zeros(size, dtype=torch.int64), {})
            trainer.train(client, optimizer, probe.loss, [batch])
        calls.append(probe.calls // 2)
    assert calls == [2, 3, 4, 5]  # two warm-ups each; the last round's 8 had been forgotten
    assert sorted(len(step.batch.labels) for step in trainer._steps.values()) == [5, 6, 8]


def test_the_steps_of_a_client_that_is_sampled_now_and_then_are_kept(client: Client) -> None:
    """Sizes that come in every round of the client are captured once, however many rounds of others lie between."""
    probe, trainer = Probe(), client.trainer
    assert isinstance(trainer, CudaGraphTrainer)
    calls = []
    for r, sizes in [(0, (8, 5)), (4, (8, 6)), (9, (8, 7)), (13, (8, 5))]:
        client.begin(r)
        optimizer = trainer.optimizer(client, "local", "adam", lr=0.1, weight_decay=0.0, momentum=0.0)
        for size in reversed(sizes):
            batch = Batch(torch.randn(size, 3, 16, 16), torch.zeros(size, dtype=torch.int64), {})
            trainer.train(client, optimizer, probe.loss, [batch])
        calls.append(probe.calls // 2)
    assert calls == [2, 3, 4, 5]  # the 8 once; the 5 had been forgotten
    assert sorted(len(step.batch.labels) for step in trainer._steps.values()) == [5, 7, 8]
    trainer.release(client)
    assert trainer._steps == trainer._rounds == {}


def test_closures_are_never_captured(client: Client) -> None:
    calls = []
    client.train(lambda k, b: calls.append(1) or k.logits(b.inputs).square().mean(), epochs=1)
    assert len(calls) == 3


def test_what_cannot_be_captured_runs_eagerly(client: Client) -> None:
    def refuse(run: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    client.trainer = CudaGraphTrainer(capture=refuse)
    probe = Probe()
    before = client.snapshot()
    client.train(probe.loss, epochs=2)
    assert probe.calls == 2 + 6
    assert any(not torch.equal(before[n], t) for n, t in client.snapshot().items())
    for size in (8, 8, 5, 5):
        client.trainer.forward(client, torch.randn(size, 3, 16, 16))
    step, forward = client.trainer.notes  # each is said once
    assert step.startswith(f"model {client.model.name}: a training step cannot be captured as a CUDA graph")
    assert "operation not permitted when stream is capturing" in step
    assert f"model {client.model.name}: a forward pass" in forward


def test_a_failed_warm_up_leaves_the_weights_as_they_were(client: Client) -> None:
    class Failing(Probe):
        def loss(self, client: Client, batch: Batch) -> torch.Tensor:
            if self.calls == 1:
                raise RuntimeError("not twice")
            return super().loss(client, batch)

    client.trainer = CudaGraphTrainer(capture=run_again)
    before, probe = client.snapshot(), Failing()
    with pytest.raises(RuntimeError, match="not twice"):
        client.train(probe.loss, epochs=1)
    assert equal(before, client.snapshot())


def test_groups_keep_their_learning_rates(small: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch) -> None:
    models = ("resnet10@4[trunk_lr=0.1]",)
    eager, replayed = (small("fccl+", name, rounds=2, models=models) for name in ("eager", "replayed"))
    run(eager)
    monkeypatch.setattr(engine, "fast_trainer", lambda *_: CudaGraphTrainer(capture=run_again))
    run(replayed)
    assert numbers(eager) == numbers(replayed)


def test_out_of_memory_is_raised_and_not_a_reason_to_run_eagerly(client: Client) -> None:
    def full(run: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    client.trainer = CudaGraphTrainer(capture=full)
    with pytest.raises(torch.OutOfMemoryError):
        client.train(Probe().loss, epochs=2)
