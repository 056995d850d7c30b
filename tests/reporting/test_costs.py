from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fake_results import fake_result

from fedchoir import Experiment, Result, run
from fedchoir.core import checkpoint
from fedchoir.core.result import ClientBudget
from fedchoir.reporting.costs import budget_of, budget_sheet, cost_of, models_held
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


def with_budget(method: str, *budgets: ClientBudget, **more: Any) -> Result:
    return fake_result(method, extras={"budget": {str(k): b for k, b in enumerate(budgets)}}, **more)


COUNTED = (
    ClientBudget(parameters=1000, modules=0, steps={"local": 10}, samples={"local": 100}),
    ClientBudget(parameters=3000, modules=200, steps={"local": 30, "public": 4}, samples={"local": 300, "public": 64}),
)


def test_a_budget_is_the_mean_over_clients_and_seeds() -> None:
    (row,) = rows([with_budget("fccl", *COUNTED, rounds=4, seed=seed) for seed in range(2)])
    budget = budget_of(row)
    assert (budget["parameters"], budget["module_parameters"]) == (2000, 100)
    assert (budget["steps_local"], budget["samples_local"]) == (20, 200)
    assert (budget["steps_public"], budget["samples_public"]) == (2, 32)
    assert (budget["run_bytes_up"], budget["run_bytes_down"]) == (8000, 4000)  # of one of four clients in four rounds


def test_what_was_not_counted_is_unknown_and_not_zero() -> None:
    (row,) = rows([with_budget("fccl", COUNTED[0], seed=0), fake_result("fccl", seed=1)])
    assert (budget_of(row)["parameters"], budget_of(row)["steps_local"]) == (None, None)
    (row,) = rows([with_budget("fccl", ClientBudget(parameters=1000, modules=0))])
    assert (budget_of(row)["parameters"], budget_of(row)["samples_public"]) == (1000, None)


def test_the_table_of_budgets() -> None:
    made = rows([with_budget("fccl", *COUNTED, rounds=4), fake_result("solo", rounds=4)])
    sheet = budget_sheet(made[0].group, made)
    lines = {line[0].text: [cell.text for cell in line[1:]] for line in sheet.lines}
    assert lines["fccl"] == ["7.8 KiB", "3.9 KiB", "2,000", "100", "20", "200", "2", "32"]
    assert lines["solo"][2:] == ["–"] * 6
    assert len(sheet.header) == 9
