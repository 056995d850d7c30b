"""run: the folder of a run, and resuming it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.helpers import Stop, StopAfter, assert_same, run_folder

from fedchoir import Experiment, Result, run
from fedchoir.experiments.config import make_plan, read_experiment
from fedchoir.experiments.run import prepare
from fedchoir.utils.errors import UsageError


def test_the_folder_describes_the_run(small: Callable[..., Experiment]) -> None:
    experiment = small("fedmd", rounds=2)
    result = run(experiment)
    out = run_folder(experiment)
    assert read_experiment(out / "experiment.toml") == experiment
    assert Result.model_validate_json((out / "result.json").read_text()) == result
    assert (out / "events.jsonl").read_text().count("\n") == 2
    assert not list(out.rglob("*.part"))


def test_a_stopped_run_continues_to_the_same_numbers(small: Callable[..., Experiment]) -> None:
    straight, stopped = small("fccl+", "straight"), small("fccl+", "stopped")
    run(straight)
    with pytest.raises(Stop):
        run(stopped, observers=[StopAfter(0)])
    with pytest.raises(UsageError, match="holds a run already"):
        run(stopped)
    with pytest.raises(UsageError, match="seed was 0 and is now 1"):
        run(stopped.model_copy(update={"seed": 1}), resume=True)
    run(stopped, resume=True)
    assert_same(straight, stopped)


def test_a_checkpoint_without_its_experiment_is_refused(small: Callable[..., Experiment]) -> None:
    experiment = small("solo", rounds=1)
    run(experiment)
    (run_folder(experiment) / "experiment.toml").unlink()
    with pytest.raises(UsageError, match=r"experiment\.toml is missing"):
        run(experiment, resume=True)


def test_models_are_given_to_clients_in_turn(small: Callable[..., Experiment]) -> None:
    method, scenario, public = prepare(make_plan(small("fedmd", models=("mlp", "simple_cnn@4"))))
    assert [client.model for client in method.spec.clients] == ["mlp", "simple_cnn@4", "mlp"]
    assert [client.train for client in method.spec.clients] == [len(client.train) for client in scenario.clients]
    assert public is not None
    assert method.spec.public_size == len(public.images) == 40
