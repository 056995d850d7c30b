from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from fedchoir.core.evaluation import evaluate
from fedchoir.reporting.analysis.compute import NotAvailable, activation, cka
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


def test_a_public_set_that_the_clients_made_is_in_their_memory(play, tmp_path: Path) -> None:
    play("fedmd on condensed samples", rounds=1)
    run = load_run(tmp_path / "run", device="cpu")
    assert run.public is not None
    assert len(run.public) == 40
    images = run.public_images(16)
    assert images is not None
    assert images.shape == (16, 3, 16, 16)


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


def test_figures_that_compare_clients_have_their_own_models_before_averaging(play, tmp_path: Path) -> None:
    """With the global model in every client, CKA would be 1 everywhere and all activation maps equal."""
    play("fedct", rounds=2)
    run = load_run(tmp_path / "run", device="cpu")
    evaluated = [client.snapshot() for client in run.clients]
    assert all(torch.equal(evaluated[0][name], t) for name, t in evaluated[1].items())
    matrix = torch.tensor(cka(run)["matrix"])
    assert (matrix.diagonal() > 0.999).all()
    assert (matrix - torch.eye(3) * matrix).max() < 0.999
    heats = [row["heat"] for row in activation(run)["rows"]]
    assert any(heat[0] != heat[1] for heat in heats)
    with run.before_averaging() as clients:  # they average to the global model
        sizes = torch.tensor([float(info.train) for info in run.method.spec.clients])
        own = torch.stack([client.model.state_dict()["head.weight"] for client in clients])
        mean = (own * (sizes / sizes.sum()).view(-1, 1, 1)).sum(dim=0)
    torch.testing.assert_close(mean, evaluated[0]["head.weight"])
    assert all(torch.equal(evaluated[0][name], t) for name, t in run.clients[0].model.state_dict().items())


def test_without_own_models_in_the_checkpoint_the_reason_is_given(play, tmp_path: Path) -> None:
    play("fedavg", models=("simple_cnn@4",), rounds=1)
    run = load_run(tmp_path / "run", device="cpu")
    for compute in (cka, activation):
        with pytest.raises(NotAvailable, match="eval_model = 'own'"):
            compute(run)
