"""After a federation a site loads the model that it evaluated, from its own work folder alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.deploy.in_process import RUN, run_on_sites
from tests.helpers import events

from fedchoir import Experiment
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.run import prepare
from fedchoir.experiments.trained import load_trained


@pytest.mark.parametrize("method", ["fedmd", "fedavg"])
def test_a_site_loads_the_model_that_it_evaluated(method: str, tmp_path: Path) -> None:
    models = "mlp" if method == "fedavg" else "logistic,mlp,res_mlp,mlp"
    settings = {"local_epochs": 1, "public_size": 32, "public_batch": 16}
    experiment = Experiment(
        method=method, scenario="heart", models=models, rounds=2, out=tmp_path / "run", settings=settings
    )
    run_on_sites(experiment, tmp_path / "sites")
    _, scenario, _ = prepare(make_plan(experiment))
    reported = events(experiment)[-1]["accuracy"]
    for client, row in zip(scenario.clients, reported, strict=True):
        (folder,) = (tmp_path / "sites").glob(f"*{client.name}*/**/{RUN}")
        trained = load_trained(folder)
        assert trained.client.name == client.name
        for accuracy, test in zip(row, scenario.tests.values(), strict=True):
            right = trained.probabilities(test.inputs).argmax(dim=1) == test.labels
            assert 100 * right.double().mean().item() == pytest.approx(accuracy, abs=1e-9)
        assert not torch.isnan(trained.probabilities(client.train.inputs)).any()
