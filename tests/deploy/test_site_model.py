"""After a federation a site loads the model that it evaluated, from its own work folder alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from tests.deploy.in_process import RUN, run_on_sites
from tests.helpers import events

from fedchoir import Experiment, UsageError
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.prepare import prepare
from fedchoir.experiments.trained import load_trained

MODELS = {
    "fedmd": "logistic,mlp,res_mlp,mlp", "fedavg": "mlp", "fedbn": "res_mlp", "ditto": "mlp",
    "fedrolex": "mlp@16,mlp@8,mlp@12,mlp@8",
}  # fmt: skip


@pytest.mark.parametrize(("method", "models"), MODELS.items())
def test_a_site_loads_the_model_that_it_evaluated(method: str, models: str, tmp_path: Path) -> None:
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
        work = tmp_path / f"work-{client.name}"  # as `fedchoir node` has it: runs are below state/
        work.mkdir()
        (work / "state").symlink_to(folder.parent)
        assert load_trained(work).folder == work / "state" / RUN
        assert trained.client.name == client.name
        for accuracy, test in zip(row, scenario.tests.values(), strict=True):
            right = trained.probabilities(test.inputs).argmax(dim=1) == test.labels
            assert 100 * right.double().mean().item() == pytest.approx(accuracy, abs=1e-9)
        assert not torch.isnan(trained.probabilities(client.train.inputs)).any()


def test_of_several_runs_at_a_site_one_is_named(tmp_path: Path) -> None:
    for seconds, run in enumerate(("aa", "bb")):
        path = tmp_path / "state" / run / "models.json"
        path.parent.mkdir(parents=True)
        path.write_text("{}")
        os.utime(path, (seconds, seconds))
    with pytest.raises(UsageError, match=r"has 2 runs; give one, newest first: .*state/bb, .*state/aa"):
        load_trained(tmp_path)
