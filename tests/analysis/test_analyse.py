"""The papers' figures from a finished run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedchoir import models
from fedchoir.cli.app import app
from fedchoir.core.evaluation import accuracy
from fedchoir.reporting.analysis.analyse import ANALYSES
from fedchoir.reporting.analysis.analyse import analyse as analyse_run
from fedchoir.reporting.analysis.cam import grad_cam
from fedchoir.reporting.analysis.domain_distance import proxy_a_distance
from fedchoir.reporting.analysis.load import answers, load_run, ready
from fedchoir.reporting.page import write_report
from fedchoir.utils.errors import UsageError
from fedchoir.utils.rng import seeded


def test_rebuilt_clients_are_those_of_the_run(play, tmp_path: Path) -> None:
    result = play("fccl+")
    run = load_run(tmp_path / "run", device="cpu")
    again = [[accuracy(c.logits, test) for test in run.scenario.tests.values()] for c in map(in_eval, run.clients)]
    assert again == run.accuracy
    assert [client.name for client in run.clients] == [client["name"] for client in result.clients]


@pytest.mark.parametrize(("method", "settings"), [("fedproc", {}), ("fedavg", {"eval_model": "own"})])
def test_what_is_looked_at_is_what_was_tested(method, settings, play, tmp_path: Path) -> None:
    play(method, models=("simple_cnn@4",), settings=settings)
    run = load_run(tmp_path / "run", device="cpu")
    again = [[accuracy(c.logits, test) for test in run.scenario.tests.values()] for c in map(in_eval, run.clients)]
    assert again == run.accuracy


def in_eval(client):
    client.model.eval()
    return client


def test_all_figures_of_a_run_and_the_report(play, tmp_path: Path) -> None:
    play("fccl+", rounds=2)
    done = CliRunner().invoke(app, ["analyse", str(tmp_path / "run"), "--device", "cpu"])
    assert done.exit_code == 0, done.output
    folder = tmp_path / "run" / "analysis"
    made = {item["name"] for item in json.loads((folder / "index.json").read_text())}
    assert {"accuracy", "correlation", "similarity", "tsne", "activation", "cka", "domain-distance"} == made
    data = json.loads((folder / "correlation.json").read_text())
    assert np.array(data["public"]).shape == (3, 4, 4)
    assert np.abs(np.array(data["private"])).max() <= 1.0001
    page = write_report([tmp_path / "run"]).read_text()
    assert page.count("data:image/png;base64") == len(made)


def test_some_figures_as_svg_keep_the_others(play, tmp_path: Path) -> None:
    play("solo", rounds=1)
    run = load_run(tmp_path / "run", device="cpu")
    analyse_run(run, only=["accuracy"])
    analyse_run(run, only=["domain-distance"], kind="svg")
    index = json.loads((tmp_path / "run" / "analysis" / "index.json").read_text())
    assert [item["file"] for item in index] == ["accuracy.png", "domain-distance.svg"]
    assert "<svg" in (tmp_path / "run" / "analysis" / "domain-distance.svg").read_text()
    with pytest.raises(UsageError, match="no analysis 'tnse'"):
        analyse_run(run, only=["tnse"])


def test_an_exchange_of_models(play, tmp_path: Path) -> None:
    play("fedexg", rounds=1)
    outcomes = analyse_run(load_run(tmp_path / "run", device="cpu"), only=["exchange", "cka"])
    assert [outcome.file for outcome in outcomes] == [
        "cka.png",
        "exchange.png",
    ]
    data = json.loads((tmp_path / "run" / "analysis" / "exchange.json").read_text())
    assert len(data["retention"]) == 3
    assert {row["source"] for row in data["retention"]} == {"green", "red", "white"}


def test_correlations_of_fedfoa(play, tmp_path: Path) -> None:
    play("fedfoa", rounds=2)
    outcomes = analyse_run(load_run(tmp_path / "run", device="cpu"), only=["correlation-distance", "correlation"])
    assert outcomes[1].file == "correlation-distance.png"
    assert "without labels" in outcomes[0].why_not
    data = json.loads((tmp_path / "run" / "analysis" / "correlation-distance.json").read_text())
    assert data["rounds"][-1] == 2
    assert data["maps"][-1][0][0] == 0


def test_without_a_public_set_private_images_remain(play, tmp_path: Path) -> None:
    play("solo", rounds=1)
    run = load_run(tmp_path / "run", device="cpu")
    data = ANALYSES["correlation"].compute(run)
    assert data["public"] is None
    assert len(data["private"]) == 3


def test_folders_that_are_no_run(play, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no run"):
        load_run(tmp_path)
    play("solo", rounds=1)
    (tmp_path / "run" / "checkpoint" / "latest.json").unlink()
    with pytest.raises(UsageError, match="no checkpoint"):
        load_run(tmp_path / "run", device="cpu")


def test_answers_do_not_move_batchnorm(play, tmp_path: Path) -> None:
    play("solo", rounds=1)
    run = load_run(tmp_path / "run", device="cpu")
    client = run.clients[1]
    before = client.snapshot()
    answers(client, ready(run.scenario.tests["red"]))
    assert all(torch.equal(before[name], t) for name, t in client.model.state_dict().items())


def test_grad_cam_finds_the_quarter_that_decides() -> None:
    """Channel 0 lights up in a corner and makes class 0, channel 1 in the lower half and makes class 1."""

    class Split(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            parts = torch.zeros(len(x), 2, 8, 8)
            parts[:, 0, :4, :4] = 1.0
            parts[:, 1, 4:] = 1.0
            return parts * x.mean()

    class Pick(torch.nn.Module):
        def forward(self, maps: torch.Tensor) -> torch.Tensor:
            return maps.sum(dim=(2, 3))

    with seeded(0, "cam"):
        model = models.VisionModel("x", Split(), Pick(), torch.nn.Identity(), map_dim=2, feature_dim=2, num_classes=2)
    heat = grad_cam(model, torch.ones(2, 3, 8, 8), torch.tensor([0, 1]))
    assert heat[0, :4, :4].min() == 1
    assert heat[0, 4:].max() == 0
    assert heat[1, 4:].min() == 1
    assert heat[1, :4].max() == 0


@pytest.mark.parametrize("name", ["resnet10@4", "simple_cnn@4", "mlp", "mobilenet_v2@0.25"])
def test_grad_cam_of_every_kind_of_model(name: str) -> None:
    model = models.build(name, 4, image_size=16)
    heat = grad_cam(model, torch.randn(3, 3, 16, 16), torch.tensor([0, 1, 2]))
    assert heat.shape == (3, 16, 16)
    assert heat.min() >= 0
    assert heat.max() <= 1
    assert all(p.grad is None for p in model.parameters())


def test_proxy_a_distance_grows_with_the_shift() -> None:
    draw = np.random.default_rng(3)
    base = draw.normal(size=(300, 6))
    distances = [proxy_a_distance(base, draw.normal(size=(300, 6)) + shift) for shift in (0.0, 0.7, 3.0)]
    assert distances == sorted(distances)
    assert distances[0] < 0.4
    assert distances[2] > 1.9
