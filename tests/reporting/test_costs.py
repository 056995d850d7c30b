from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.fake_results import fake_result

from fedchoir import Experiment, run
from fedchoir.core import checkpoint
from fedchoir.reporting.costs import cost_of, models_held
from fedchoir.reporting.run_groups import rows
from fedchoir.reporting.store import find_results


def test_costs_are_per_client_and_round(tmp_path: Path) -> None:
    model = {"model/w": torch.zeros(10, 10), "model/b": torch.zeros(28, dtype=torch.bfloat16)}
    teacher = {f"memory/teacher/{name}": t for name, t in model.items()}
    checkpoint.save(tmp_path / "checkpoint", 1, [("client-00000", {**model, **teacher}), ("client-00001", model)], {})
    result = fake_result("fccl+", rounds=4, extras={"folder": str(tmp_path)})
    cost = cost_of(rows([result])[0])
    assert (cost["bytes_up"], cost["bytes_down"], cost["messages"]) == (2000, 1000, 4)
    assert (cost["models_held"], cost["seconds_local"], cost["seconds_total"]) == (1.5, 0.75, 1.5)
    (tmp_path / "checkpoint" / "latest.json").write_text("{")
    assert models_held(result) is None


def test_without_a_checkpoint_the_models_held_are_unknown() -> None:
    assert models_held(fake_result("fccl+")) is None


@pytest.mark.parametrize(("method", "models"), [("fedavg", 1), ("fedprox", 2), ("moon", 2), ("fccl", 3), ("fccl+", 2)])
def test_models_held_between_rounds_of_real_runs(method: str, models: int, small: Callable[..., Experiment]) -> None:
    """As in Table 3 of the FCCL+ paper, except for MOON: the paper counts 3 during training; later the global model is
    the server's. FedProx stores parameters without BatchNorm statistics."""
    experiment = small(method, rounds=2, models=("resnet10@4",), settings={"local_epochs": 1})
    run(experiment)
    (result,) = find_results([experiment.out])
    assert models_held(result) == pytest.approx(models, abs=0.02)
