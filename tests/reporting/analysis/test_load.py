from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from fedchoir.core.evaluation import evaluate
from fedchoir.reporting.analysis.load import load_run, normalised, outputs
from fedchoir.utils.errors import UsageError


def test_rebuilt_clients_are_those_of_the_run(play, tmp_path: Path) -> None:
    result = play("fccl+")
    run = load_run(tmp_path / "run", device="cpu")
    again = [evaluate(c.logits, run.scenario.tests.values()) for c in map(in_eval, run.clients)]
    assert [[score.accuracy for score in row] for row in again] == run.accuracy
    assert [client.name for client in run.clients] == [client["name"] for client in result.clients]


@pytest.mark.parametrize(
    ("method", "models", "settings"),
    [
        ("fedproc", ("simple_cnn@4",), {}),
        ("fedavg", ("simple_cnn@4",), {"eval_model": "own"}),
        ("fedbn", ("resnet10@4",), {}),
        ("heterofl", ("resnet10@4", "resnet10@2"), {}),
    ],
)
def test_loaded_models_are_the_evaluated_ones(method, models, settings, play, tmp_path: Path) -> None:
    play(method, models=models, settings=settings)
    run = load_run(tmp_path / "run", device="cpu")
    again = [evaluate(c.logits, run.scenario.tests.values()) for c in map(in_eval, run.clients)]
    assert [[score.accuracy for score in row] for row in again] == run.accuracy


def in_eval(client):
    client.model.eval()
    return client


def test_folders_without_a_run_or_a_checkpoint(play, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a run"):
        load_run(tmp_path)
    play("solo", rounds=1)
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    with pytest.raises(UsageError, match="no checkpoint"):
        load_run(tmp_path / "run", device="cpu")


def test_outputs_do_not_move_batchnorm(play, tmp_path: Path) -> None:
    play("solo", rounds=1)
    run = load_run(tmp_path / "run", device="cpu")
    client = run.clients[1]
    before = client.snapshot()
    outputs(client, normalised(run.scenario.tests["red"]))
    assert all(torch.equal(before[name], t) for name, t in client.model.state_dict().items())
