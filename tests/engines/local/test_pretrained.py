"""Pretrained models that runs share: the same numbers as runs that pretrain by themselves, each model trained once."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedchoir import Experiment, Result, run
from fedchoir.core.training import EagerTrainer

Small = Callable[..., Experiment]
PRETRAIN = {"pretrain_epochs": 2}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The clients that were really pretrained, in order."""
    seen: list[str] = []
    train = EagerTrainer.train

    def watched(self: EagerTrainer, client: Any, optimizer: Any, loss: Any, batches: Any) -> Any:
        seen.extend([client.name] if client.phase == "pretrain" else [])
        return train(self, client, optimizer, loss, batches)

    monkeypatch.setattr(EagerTrainer, "train", watched)
    return seen


def numbers(result: Result) -> dict[str, Any]:
    return result.model_dump(mode="json", exclude={"seconds", "notes"})


def losses(experiment: Experiment) -> list[Any]:
    assert experiment.out is not None
    lines = (experiment.out / "events.jsonl").read_text().splitlines()
    return [[event["losses"], event["accuracy"]] for event in map(json.loads, lines)]


@pytest.mark.parametrize("method", ["solo", "fccl", "fbcl"])
def test_the_same_numbers_as_without_a_shared_folder(
    method: str, small: Small, tmp_path: Path, trained: list[str]
) -> None:
    alone = small(method, "alone", rounds=2, settings=PRETRAIN)
    expected = numbers(run(alone))
    assert len(trained) == 3
    run(small("feddf", "first", rounds=1, settings=PRETRAIN, pretrained=tmp_path / "shared"))
    assert len(trained) == 6
    shared = small(method, "shared", rounds=2, settings=PRETRAIN, pretrained=tmp_path / "shared")
    assert numbers(run(shared)) == expected
    assert losses(shared) == losses(alone)
    assert len(trained) == 6, "trained again"


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"settings": {**PRETRAIN, "local_lr": 0.002}}, {"settings": {**PRETRAIN, "local_weight_decay": 0.1}},
     {"settings": {"pretrain_epochs": 3}}, {"settings": {**PRETRAIN, "pretrain_batch": 8}},
     {"settings": {**PRETRAIN, "private": (20,)}}, {"settings": {**PRETRAIN, "label_noise": 0.3}},
     {"settings": {**PRETRAIN, "private_augment": "crop-flip"}}, {"models": ("simple_cnn@3", "simple_cnn@3", "mlp")}],
    ids=str,
)  # fmt: skip
def test_whatever_changes_the_model_makes_another_one(
    change: dict[str, Any], small: Small, tmp_path: Path, trained: list[str]
) -> None:
    common: dict[str, Any] = {"rounds": 1, "pretrained": tmp_path / "shared"}
    common["models"] = ("simple_cnn@2", "simple_cnn@2", "mlp")
    run(small("solo", "a", **{**common, "settings": PRETRAIN}))
    run(small("solo", "b", **{**common, "settings": PRETRAIN, **change}))
    repeated = 1 if "models" in change else 0  # the third model is the same
    assert len(trained) == 6 - repeated


def test_a_damaged_file_is_trained_again(small: Small, tmp_path: Path, trained: list[str]) -> None:
    first = run(small("solo", "a", rounds=1, settings=PRETRAIN, pretrained=tmp_path / "shared"))
    damaged = sorted((tmp_path / "shared").glob("*.safetensors"))[0]
    damaged.write_bytes(damaged.read_bytes()[:100])
    again = run(small("solo", "b", rounds=1, settings=PRETRAIN, pretrained=tmp_path / "shared"))
    assert again.accuracy == first.accuracy
    assert len(trained) == 4


@pytest.mark.parametrize("method", ["choir", "byol"])
def test_a_method_that_pretrains_in_its_own_way_shares_nothing(method: str, small: Small, tmp_path: Path) -> None:
    run(small(method, rounds=1, settings=PRETRAIN, pretrained=tmp_path / "shared"))
    assert not list(tmp_path.glob("shared/*.safetensors"))


def test_a_stopped_run_resumes_without_pretraining_again(small: Small, tmp_path: Path, trained: list[str]) -> None:
    whole = run(small("fccl", "whole", rounds=3, settings=PRETRAIN, pretrained=tmp_path / "shared"))
    stopped = small("fccl", "stopped", rounds=3, settings=PRETRAIN, pretrained=tmp_path / "shared")

    class Stop:
        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *args, **kwargs: None

        def round(self, event: dict[str, Any]) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(stopped, observers=[Stop()])  # type: ignore[list-item]
    assert numbers(run(stopped, resume=True)) == numbers(whole)
    assert len(trained) == 3


def test_two_processes_at_once_train_each_model_once(small: Small, tmp_path: Path) -> None:
    """The second process waits for the first one's model; both end with the same numbers."""
    runs = [
        small("solo", name, rounds=1, settings={"pretrain_epochs": 4}, pretrained=tmp_path / "shared") for name in "ab"
    ]
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=run, args=(experiment,)) for experiment in runs]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    files = sorted((tmp_path / "shared").glob("*.safetensors"))
    assert len(files) == 3
    assert not list((tmp_path / "shared").glob("*.part"))
    found = [json.loads((tmp_path / name / "result.json").read_text())["accuracy"] for name in "ab"]
    assert found[0] == found[1] == run(small("solo", "c", rounds=1, settings={"pretrain_epochs": 4})).accuracy


def test_a_run_with_a_process_for_each_device_shares_models_too(
    small: Small, tmp_path: Path, trained: list[str]
) -> None:
    shared: dict[str, Any] = {"rounds": 1, "settings": PRETRAIN, "pretrained": tmp_path / "shared"}
    two = run(small("solo", "two", **shared, devices=("cpu", "cpu")))
    files = sorted((tmp_path / "shared").glob("*.safetensors"))
    assert len(files) == 3
    one = run(small("solo", "one", **shared))
    assert one.accuracy == two.accuracy
    assert trained == []
