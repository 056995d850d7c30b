"""Whole runs with another headline metric, a validation share and early stopping: on all engines, and resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import helpers
from tests.deploy.in_process import run_on_sites
from tests.helpers import Stop, StopAfter, assert_same, events, states

from fedchoir import Experiment, Result, run
from fedchoir.core.metrics import METRICS
from fedchoir.core.result import load_result

VALIDATED = {"validation": 0.25, "local_epochs": 1}
numbers = partial(helpers.numbers, without=("seconds", "messages"))


@pytest.fixture
def auroc(small: Callable[..., Experiment]) -> Callable[..., Experiment]:
    def make(method: str, name: str = "run", **changes: Any) -> Experiment:
        settings = {**VALIDATED, **changes.pop("settings", {})}
        return small(method, name, metric="auroc", settings=settings, **changes)

    return make


def test_a_result_has_every_metric_of_every_client_on_every_test(small: Callable[..., Experiment]) -> None:
    experiment = small("solo", rounds=1)
    result = run(experiment)
    assert result.metric == "accuracy"
    assert list(result.metrics) == list(METRICS)
    assert result.metrics["accuracy"] == result.accuracy
    for name, matrix in result.metrics.items():
        assert [len(row) for row in matrix] == [len(result.tests)] * len(result.clients)
        for row, spans in zip(matrix, result.metrics_ci[name], strict=True):
            for value, span in zip(row, spans, strict=True):
                assert 0 <= (value or 0) <= METRICS[name].largest
                assert span is None or span[0] <= span[1]
    intra = result.metrics_summary["accuracy"]["intra"]
    assert intra.clients == result.intra
    assert intra.mean == pytest.approx(result.intra_avg)
    assert load_result(experiment.out or Path()) == result


def test_the_best_model_of_every_client_is_kept_beside_the_last(auroc: Callable[..., Experiment]) -> None:
    experiment = auroc("solo", rounds=3)
    result, lines, saved = run(experiment), events(experiment), states(experiment)
    assert [best.client for best in result.best] == [client["name"] for client in result.clients]
    for k, best in enumerate(result.best):
        scores = [line["validation"][k]["score"] for line in lines]
        assert best.round == scores.index(max(scores))
        assert best.validation == max(scores)
        assert best.metrics["auroc"] == lines[best.round]["metrics"]["auroc"][k]
        state = saved[f"client-{k:05d}"]
        assert int(state["memory/best_round"]) == best.round
        kept = {name.removeprefix("memory/best/"): t for name, t in state.items() if name.startswith("memory/best/")}
        last = {name.removeprefix("model/"): t for name, t in state.items() if name.startswith("model/")}
        assert kept.keys() == last.keys()
        assert (best.round == 2) == all(torch.equal(t, last[name]) for name, t in kept.items())


@pytest.mark.parametrize("method", ["fccl+", "fedavg"])
def test_a_resumed_run_keeps_the_same_best_models(method: str, auroc: Callable[..., Experiment]) -> None:
    straight, stopped = auroc(method, "straight"), auroc(method, "stopped")
    whole = run(straight)
    with pytest.raises(Stop):
        run(stopped, observers=[StopAfter(1)])
    again = run(stopped, resume=True)
    assert_same(straight, stopped)
    assert again.best == whole.best


@pytest.mark.parametrize("method", ["solo", "fedavg"])
def test_flower_sites_keep_the_same_best_models(method: str, auroc: Callable[..., Experiment], tmp_path: Path) -> None:
    local, flower = (auroc(method, name, settings={"early_stopping": 3}) for name in ("local", "flower"))
    whole = run(local)
    result, _ = run_on_sites(flower, tmp_path / "sites")
    assert numbers(local) == numbers(flower)
    assert result.best == whole.best


@pytest.mark.slow
def test_several_processes_keep_the_same_best_models(auroc: Callable[..., Experiment]) -> None:
    local, several = auroc("fedavg", "local"), auroc("fedavg", "several", devices=("cpu", "cpu"))
    one, two = run(local), run(several)
    assert_same(local, several)
    assert one.best == two.best


def test_a_run_that_stops_early_is_a_complete_run(auroc: Callable[..., Experiment]) -> None:
    """With a learning rate that changes next to nothing, no client improves after its first round."""
    settings = {"early_stopping": 1, "local_lr": 1e-12}
    experiment = auroc("solo", rounds=6, models=("mlp",), settings=settings)
    result = run(experiment)
    assert result.rounds == 2
    assert result.planned == 6
    assert any("stopped early after round 2 of 6" in note for note in result.notes)
    assert result.metrics_ci["auroc"][0][0] is not None
    again = run(experiment, resume=True)
    assert strip(again) == strip(result)


def strip(result: Result) -> dict[str, Any]:
    return {key: value for key, value in json.loads(result.model_dump_json()).items() if key != "seconds"}


def test_validation_samples_are_not_trained_on(auroc: Callable[..., Experiment]) -> None:
    with_share, without = (
        run(auroc("solo", "a", rounds=1)),
        run(auroc("solo", "b", rounds=1, settings={"validation": 0})),
    )
    assert [c["train"] for c in with_share.clients] == [round(0.75 * c["train"]) for c in without.clients]
    assert without.best == []
