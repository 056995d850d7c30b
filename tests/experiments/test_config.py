"""Experiments and plans: what is filled in, and what is refused."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from tests.federation_harness import FederationHarness

from fedchoir import Experiment, methods
from fedchoir.core.settings import Settings
from fedchoir.data.options import DataOptions
from fedchoir.experiments.config import make_plan, read_experiment
from fedchoir.utils.errors import UsageError


def test_later_sources_of_options_win() -> None:
    plan = make_plan(Experiment(method="fccl", scenario="digits"))
    assert (plan.params.local_epochs, plan.rounds, plan.public) == (20, 40, "cifar100")
    official = make_plan(Experiment(method="fccl", scenario="digits", profile="official", settings={"public_batch": 9}))
    assert official.params.local_epochs == (40, 35, 3, 4)
    assert official.params.public_batch == 9
    lite = make_plan(Experiment(method="fedavg"))
    assert (lite.params.local_epochs, lite.models, lite.public) == (4, ("resnet12@8",), None)
    assert lite.out == Path("runs/digits-lite-fedavg-fixed-seed0")


def test_condensed_samples_are_named_like_any_public_set(tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text('method = "fccl+"\npublic = "condensed"\n[settings]\nper_class = 5\nomega = 1\n')
    plan = make_plan(read_experiment(path))
    assert plan.public == "condensed"
    assert plan.params.model_dump().items() >= {"per_class": 5, "omega": 1, "local_epochs": 4}.items()
    assert make_plan(Experiment(method="solo", public="condensed")).public is None


def test_an_experiment_survives_its_file(tmp_path: Path) -> None:
    experiment = Experiment(
        method="fccl+", models="resnet10, mlp", devices=2, out=tmp_path, settings={"private": [0.5, 20]}
    )  # type: ignore[arg-type]
    (tmp_path / "experiment.toml").write_text(experiment.to_toml())
    assert read_experiment(tmp_path / "experiment.toml") == experiment
    assert (experiment.models, experiment.devices) == (("resnet10", "mlp"), ("2",))
    assert "seed = 0" in experiment.to_toml()
    assert tomllib.loads(experiment.to_toml())["settings"] == {"private": [0.5, 20]}


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({}, "method is missing: name of a method"),
        ({"method": "solo", "rounds": 0}, "rounds = 0 is not possible: it should be greater than or equal to 1"),
        ({"method": "solo", "round": 3}, "there is no option 'round'; did you mean rounds"),
        ({"method": "solo", "state_budget": "much"}, "state_budget = 'much' .* a size such as 2GB, 500MB or 0"),
    ],
)
def test_a_wrong_experiment_is_one_line(values: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError, match=f"^{line}") as error:
        Experiment(**values)
    assert "\n" not in str(error.value)


def test_a_partition_file_determines_the_number_of_clients(tmp_path: Path) -> None:
    settings = {"partition": "file", "partition_file": str(tmp_path / "parts.json")}
    assert make_plan(Experiment(method="fedavg", scenario="cifar10", settings=settings)).params.clients is None
    assert make_plan(Experiment(method="fedavg", scenario="cifar10")).params.clients == 10


@pytest.mark.parametrize("name", methods.registry())
def test_options_of_the_data_mean_the_same_for_every_method(name: str) -> None:
    for key, field in methods.get(name).Params.model_fields.items():
        assert field.description, f"{key} has no description"
        if key in DataOptions.model_fields:
            assert field.description == Settings.model_fields[key].description, f"{key} means something else here"


@pytest.mark.parametrize(
    ("method", "settings", "line"),
    [
        ("fedavg", {"eval_model": "own", "fraction": 0.5}, r"eval_model = 'own' .* fraction = 0.5"),
        (
            "fedmd",
            {"eval_model": "own", "average": "after-local"},
            r"eval_model = 'own' .* set average to before-local",
        ),
        ("fccl", {"own_logits": "previous", "fraction": 0.5}, r"own_logits = 'previous' .* with fraction = 0.5: "),
        ("fccl", {"own_logits": "previous", "sync": "epoch"}, r"own_logits = 'previous' .* with sync = 'epoch': "),
    ],
)
def test_options_that_exclude_each_other(
    method: str, settings: dict[str, Any], line: str, small: Callable[..., Experiment]
) -> None:
    with pytest.raises(UsageError, match=rf"^{line}"):
        FederationHarness(small(method, models=("simple_cnn@4",), settings=settings))


@pytest.mark.parametrize("name", ["fedmd-ssl", "ensemble-ssl"])
def test_encoders_that_are_alike_are_not_averaged_without_their_heads(
    name: str, small: Callable[..., Experiment]
) -> None:
    harness = FederationHarness(small(name, models=("simple_cnn@4",)))
    assert harness.spec.homogeneous
    assert not harness.method.averages("before-local")


def test_models_are_strings_tables_or_modules(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3, 2))
    table = {"source": "my_net.py:build", "weights": "w.pt", "trunk_lr": 0.1}
    experiment = Experiment(method="solo", models=["resnet10", table, net])  # type: ignore[list-item]
    assert experiment.models is not None
    assert experiment.models[:2] == ("resnet10", "my_net.py:build[weights=w.pt,trunk_lr=0.1]")
    assert experiment.models[2].startswith("object:Sequential-")
    (tmp_path / "e.toml").write_text(experiment.to_toml())
    assert read_experiment(tmp_path / "e.toml") == experiment
    text = Experiment(method="solo", models="mlp, timm:resnet18[pretrained,train=head]")  # type: ignore[arg-type]
    assert text.models == ("mlp", "timm:resnet18[pretrained,train=head]")


def test_a_table_of_a_model_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "net.py").touch()
    (tmp_path / "e.toml").write_text('method = "solo"\nmodels = ["mlp", {source = "net.py:build", train = "head"}]\n')
    assert read_experiment(tmp_path / "e.toml").models == ("mlp", f"{tmp_path}/net.py:build[train=head]")
    (tmp_path / "e.toml").write_text('method = "solo"\nmodels = [{source = "net.py:build", trian = "head"}]\n')
    with pytest.raises(UsageError, match=r"^there is no option 'trian'; did you mean train"):
        read_experiment(tmp_path / "e.toml")


def test_weights_are_given_to_the_models() -> None:
    plan = make_plan(Experiment(method="fedavg", models="mlp", weights="a.pt"))  # type: ignore[arg-type]
    assert plan.models == ("mlp[weights=a.pt]",)
    with pytest.raises(UsageError, match="pretrained and weights exclude each other"):
        make_plan(Experiment(method="solo", models="timm:resnet18[pretrained]", weights="a.pt"))  # type: ignore[arg-type]


@pytest.mark.parametrize("models", [5, True, 1.5])
def test_models_in_a_file_that_are_no_names_are_one_line(models: object, tmp_path: Path) -> None:
    """Found by `make fuzz`."""
    file = tmp_path / "experiment.toml"
    file.write_text(tomli_w.dumps({"method": "solo", "models": models}))
    with pytest.raises(UsageError, match=f"models = {models} is not possible"):
        read_experiment(file)


@pytest.mark.parametrize(("exchanges", "averagings"), [(0, 200), (1, 100), (2, 66), (8, 22)])
def test_rounds_may_count_interactions(exchanges: int, averagings: int) -> None:
    """FedCT's Figure 5: 200 interactions, whatever the number of exchanges between two averagings."""
    settings = {"exchanges": exchanges, "rounds_unit": "interaction"}
    plan = make_plan(Experiment(method="fedexg", scenario="cifar10", rounds=200, settings=settings))
    assert plan.rounds == averagings
