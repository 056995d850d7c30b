"""Whole runs with models of the user's own: every method, resumed runs, private training, objects."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from tests.helpers import Stop, StopAfter, assert_same, events, states
from tests.models.own_models import Convolutional, HuggingFaceStyle, PlainNet

from fedchoir import Experiment, methods, run
from fedchoir.engines.local.state_cache import state_name
from fedchoir.models import build
from fedchoir.utils.errors import UsageError
from fedchoir.utils.input_spec import InputSpec

Make = Callable[..., Experiment]
OWN = "tests.models.own_models:"
MIXED = (f"{OWN}Convolutional[trunk_lr=0.5]", f"{OWN}WithMethods[train=head]")


@pytest.mark.parametrize("name", ["fccl+", "fedavg", "fbcl", "fedct", "fedasam", "byol", "choir"])
def test_methods_run_with_models_that_they_have_never_seen(name: str, small: Make) -> None:
    check_run(name, small)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(methods.registry()))
def test_every_method_runs_with_models_that_it_has_never_seen(name: str, small: Make) -> None:
    check_run(name, small)


def check_run(name: str, small: Make) -> None:
    heterogeneous = methods.get(name).heterogeneous
    for number, models in enumerate([MIXED] if heterogeneous else [MIXED[:1], MIXED[1:]]):
        result = run(small(name, f"run{number}", models=models, rounds=2))
        assert result.rounds == 2
        assert all(0 <= value <= 100 for row in result.accuracy for value in row)


@pytest.mark.slow
def test_models_of_every_library_learn_together(small: Make) -> None:
    nets = [
        torchvision.models.resnet18(),
        torchvision.models.vit_b_16(image_size=32),
        timm.create_model("convnext_atto"),
        PlainNet(4, (3, 32, 32)),
        HuggingFaceStyle(4),
    ]
    result = run(small("fccl+", models=nets[:3], rounds=1, settings={"image_size": 32}))
    assert sum("was replaced by one for" in note for note in result.notes) == 3
    assert run(small("fccl+", "other", models=nets[3:], rounds=1, settings={"image_size": 32})).rounds == 1


FROZEN = (f"{OWN}Convolutional[train=head]", f"{OWN}WithMethods[train=head]")


@pytest.mark.parametrize(("name", "models"), [("fccl+", FROZEN), ("byol", FROZEN), ("fedavg", FROZEN[:1])])
def test_a_frozen_trunk_is_the_same_after_a_run(name: str, models: tuple[str, ...], small: Make) -> None:
    """Bit by bit; an average of equal weights may round the last one."""
    experiment = small(name, models=models, rounds=2)
    run(experiment)
    stored = states(experiment)
    prefix, state = ("model/", stored[state_name(0)]) if len(models) > 1 else ("weights/", stored["server"])
    frozen = {key: t for key, t in _initial(experiment).items() if not key.startswith("net.head")}
    assert frozen
    for key, t in frozen.items():
        torch.testing.assert_close(state[prefix + key], t, atol=0, rtol=0 if len(models) > 1 else 2**-23)


def _initial(experiment: Experiment) -> dict[str, torch.Tensor]:
    from fedchoir.engines.local.client_factory import new_modules
    from fedchoir.experiments.config import make_plan
    from fedchoir.experiments.prepare import prepare

    method, _, _ = prepare(make_plan(experiment))
    return new_modules(method, 0).model.state_dict()


def test_a_method_that_needs_a_map_says_so_before_it_trains(small: Make, tmp_path: Path) -> None:
    (tmp_path / "flat.py").write_text(
        textwrap.dedent("""
        from torch import nn
        def build(num_classes, input_shape):
            width = input_shape[0] * input_shape[1] * input_shape[2]
            return nn.Sequential(nn.Flatten(), nn.Linear(width, 6), nn.ReLU(), nn.Linear(6, num_classes))
        """)
    )
    experiment = small("fbcl", models=(f"{tmp_path}/flat.py:build",))
    with pytest.raises(UsageError, match=r"fbcl needs a feature map, and model '.*flat.py:build' has none"):
        run(experiment)
    assert not (tmp_path / "run" / "events.jsonl").exists()
    run(small("fccl+", models=(f"{tmp_path}/flat.py:build",), rounds=1))


def test_a_run_with_pytorch_modules_resumes_exactly(small: Make) -> None:
    """A script that makes the same objects again continues its run."""

    def nets() -> list[torch.nn.Module]:
        torch.manual_seed(3)
        return [PlainNet(4, (3, 16, 16)), HuggingFaceStyle(4), Convolutional(1000)]

    whole, stopped = small("fccl+", "whole", models=nets()), small("fccl+", "stopped", models=nets())
    result = run(whole)
    assert any("head had 1000 outputs" in note for note in result.notes)
    assert any("log_softmax" in note for note in result.notes)
    with pytest.raises(Stop):
        run(stopped, observers=[StopAfter(1)])
    run(small("fccl+", "stopped", models=nets()), resume=True)
    assert_same(whole, stopped)


def test_other_objects_cannot_continue_a_run(small: Make) -> None:
    with pytest.raises(Stop):
        run(small("solo", models=[Convolutional(4)]), observers=[StopAfter(0)])
    with pytest.raises(UsageError, match=r"models was .*object:Convolutional.* and is now"):
        run(small("solo", models=[Convolutional(4)]), resume=True)


def test_objects_cannot_go_to_other_processes(small: Make) -> None:
    with pytest.raises(UsageError, match="is a Python object of this process"):
        run(small("solo", models=[Convolutional(4)], devices="cpu,cpu", rounds=1))


@pytest.mark.parametrize("name", ["fedavg", "fccl+"])
def test_private_training_of_an_own_model(name: str, small: Make) -> None:
    settings = {"dp_noise": 1.0, "dp_clip": 1.0}
    for options in ("", "[train=head]"):
        experiment = small(name, f"dp{options}", models=(f"{OWN}Convolutional{options}",), settings=settings, rounds=1)
        assert run(experiment).rounds == 1


def test_clients_start_from_their_own_weights(small: Make, tmp_path: Path) -> None:
    files = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        torch.save(Convolutional(4).state_dict(), tmp_path / f"{seed}.pt")
        files.append(str(tmp_path / f"{seed}.pt"))
    frozen = small("solo", models=FROZEN[:1], weights=files, rounds=1)
    run(frozen)
    for k, file in enumerate(files):
        stem = torch.load(file, weights_only=True)["stem.weight"]
        assert torch.equal(states(frozen)[state_name(k)]["model/net.stem.weight"], stem)


def test_weights_of_one_architecture_can_be_averaged_from_different_files(small: Make, tmp_path: Path) -> None:
    torch.save(build("resnet10@4", 4, InputSpec.image(16)).state_dict(), tmp_path / "w.pt")
    result = run(small("fedavg", weights=f"{tmp_path}/w.pt,none", rounds=1))  # type: ignore[arg-type]
    assert result.rounds == 1


def test_activation_checkpointing_keeps_the_numbers(small: Make) -> None:
    budgets: dict[str, dict[str, Any]] = {"all": {}, "none": {"activation_budget_gb": 1e-9}}
    runs = [small("fccl+", name, models=MIXED[:1], settings=s, rounds=1) for name, s in budgets.items()]
    for experiment in runs:
        run(experiment)
    assert [e["accuracy"] for e in events(runs[0])] == [e["accuracy"] for e in events(runs[1])]
