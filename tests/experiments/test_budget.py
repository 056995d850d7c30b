"""Budgets: parameters, and steps and samples counted where training happens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from tests.helpers import Stop, StopAfter, run_folder
from torch.optim.optimizer import register_optimizer_step_post_hook

from fedchoir import Experiment, Result, run
from fedchoir.core.client import Client
from fedchoir.core.result import load_result
from fedchoir.core.training import Batch, EagerTrainer
from fedchoir.engines.local import engine
from fedchoir.engines.local.cuda_graphs import CudaGraphTrainer
from fedchoir.experiments.budget import FILE, CountingTrainer
from fedchoir.models import build
from fedchoir.utils.input_spec import InputSpec

Make = Callable[..., Experiment]


def budget(result: Result, name: str = "red") -> dict[str, Any]:
    return result.budget[name].model_dump()


def test_steps_by_hand(small: Make) -> None:
    """48 private samples in batches of 16 for 2 epochs, 40 public ones in batches of 16, 16 and 8; 2 epochs before."""
    result = run(small("fccl", rounds=3, settings={"pretrain_epochs": 2}))
    for name in ("green", "red", "white"):
        found = budget(result, name)
        assert found["steps"] == {"local": 3 * (2 + 3 * 2), "public": 3 * 3}
        assert found["samples"] == {"local": 48 * (2 + 3 * 2), "public": 3 * 40}
    assert load_result(run_folder(small("fccl"))).budget == result.budget


def test_solo_has_no_public_phase_and_fedct_trains_twice(small: Make) -> None:
    assert budget(run(small("solo", "a", rounds=1)))["steps"] == {"local": 6}
    assert budget(run(small("fedct", "b", rounds=1, settings={"local_epochs": 1})))["steps"] == {"local": 6}


def test_parameters_of_the_own_model_and_of_auxiliary_modules(small: Make) -> None:
    result = run(small("fml", rounds=1, models=("mlp", "resnet10@4"), settings={"meme": "simple_cnn@4"}))
    models = {name: build(name, 4, InputSpec.image(16)) for name in ("mlp", "resnet10@4", "simple_cnn@4")}
    sizes = {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()}
    for client in result.clients:
        found = result.budget[client["name"]]
        assert (found.parameters, found.modules) == (sizes[client["model"]], sizes["simple_cnn@4"])


def test_the_probe_of_a_self_supervised_method_is_no_training(small: Make) -> None:
    """24 samples a batch, 48 samples, one epoch: two steps a round; the probe trains for 30 epochs."""
    assert budget(run(small("fedbyol", rounds=1)))["steps"] == {"local": 2}


def test_captured_steps_are_counted_as_eager_ones(small: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    eager = run(small("fccl+", "eager", rounds=2))
    monkeypatch.setattr(engine, "fast_trainer", lambda *_: CudaGraphTrainer(capture=lambda step: step))
    assert run(small("fccl+", "captured", rounds=2)).budget == eager.budget


@pytest.mark.parametrize("method", ["choir", "fml", "rhfl", "fedprox", "fedfoa"])
def test_counts_are_the_calls_of_the_optimisers(method: str, small: Make) -> None:
    """Every step at the clients, by torch's own hook; a probe of the evaluation optimises a layer of its own."""
    steps = 0

    def count(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        nonlocal steps
        steps += len(optimizer.param_groups[0]["params"]) > 2

    hook = register_optimizer_step_post_hook(count)
    try:
        result = run(small(method, rounds=2))
    finally:
        hook.remove()
    assert sum(sum((each.steps or {}).values()) for each in result.budget.values()) == steps


def test_a_resumed_run_has_the_budget_of_an_uninterrupted_one(small: Make) -> None:
    straight, stopped = small("fccl+", "straight"), small("fccl+", "stopped")
    expected = run(straight)
    with pytest.raises(Stop):
        run(stopped, observers=[StopAfter(0)])
    assert run(stopped, resume=True).budget == expected.budget
    assert (run_folder(stopped) / FILE).read_text() == (run_folder(straight) / FILE).read_text()


def test_rounds_that_were_not_counted_leave_steps_unknown(small: Make) -> None:
    """A run that an older version began."""
    stopped = small("solo", "stopped")
    with pytest.raises(Stop):
        run(stopped, observers=[StopAfter(0)])
    (run_folder(stopped) / FILE).unlink()
    found = budget(run(stopped, resume=True))
    assert (found["steps"], found["samples"]) == (None, None)
    assert found["parameters"] > 0


def test_under_differential_privacy_steps_are_not_counted(small: Make) -> None:
    pytest.importorskip("opacus")
    found = budget(run(small("solo", rounds=1, models=("mlp",), settings={"dp_noise": 1.0})))
    assert (found["steps"], found["samples"]) == (None, None)


def test_one_line_per_round(small: Make) -> None:
    experiment = small("solo", rounds=2)
    run(experiment)
    lines = [json.loads(line) for line in (run_folder(experiment) / FILE).read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 1]
    assert lines[0]["clients"]["red"] == {"local": [6, 96]}


def test_a_trainer_counts_only_what_its_own_optimizers_do(client_and_batches: tuple[Client, list[Batch]]) -> None:
    client, batches = client_and_batches
    trainer = CountingTrainer(EagerTrainer())
    known = trainer.optimizer(client, "public", "sgd", lr=0.1, weight_decay=0.0, momentum=0.0)
    other = torch.optim.SGD(client.model.parameters(), lr=0.1)

    def loss(c: Client, batch: Batch) -> torch.Tensor:
        return c.logits(batch.inputs).square().mean()

    def lazily() -> Iterable[Batch]:
        yield from batches

    trainer.train(client, known, loss, lazily())
    trainer.train(client, other, loss, batches)
    assert trainer.counts == {client.name: {"public": [len(batches), sum(map(len, batches))]}}
    assert trainer.notes is trainer.inner.notes


@pytest.fixture
def client_and_batches(small: Make) -> tuple[Client, list[Batch]]:
    from fedchoir.experiments.config import make_plan
    from fedchoir.experiments.prepare import prepare

    method, scenario, _ = prepare(make_plan(small("solo")))
    client = engine.LocalEngine(method, scenario, None, device=torch.device("cpu")).clients[0]
    return client, list(client.private_batches.batches(range(1), {}))


def test_several_processes_have_parameters_and_no_steps(small: Make) -> None:
    alone = run(small("fccl", "alone", rounds=1))
    several = run(small("fccl", "several", rounds=1, devices=("cpu", "cpu")))
    assert {name: each.parameters for name, each in several.budget.items()} == {
        name: each.parameters for name, each in alone.budget.items()
    }
    assert {each.steps for each in several.budget.values()} == {None}
