"""run: the folder of a run, and resuming it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import Stop, StopAfter, assert_same, numbers, run_folder

from fedchoir import Experiment, Result, run
from fedchoir.engines import factory
from fedchoir.experiments.config import make_plan, read_experiment
from fedchoir.experiments.prepare import prepare
from fedchoir.utils.errors import StorageError, UsageError, WorkerError


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


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be ..."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_a_gpu_that_is_full_before_the_first_round(
    error: Exception, small: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine takes test sets to its GPU when it is built, and CUDA and its libraries take memory of their own."""

    def full(*arguments: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(factory, "LocalEngine", full)
    with pytest.raises(WorkerError, match=r"^the memory of cpu is full; fewer runs at once") as caught:
        run(small("solo"))
    assert caught.value.gpu_full


def test_another_error_of_an_engine_is_not_a_full_gpu(
    small: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(factory, "LocalEngine", fails)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        run(small("solo"))


def test_models_are_given_to_clients_in_turn(small: Callable[..., Experiment]) -> None:
    method, scenario, public = prepare(make_plan(small("fedmd", models=("mlp", "simple_cnn@4"))))
    assert [client.model for client in method.spec.clients] == ["mlp", "simple_cnn@4", "mlp"]
    assert [client.train for client in method.spec.clients] == [len(client.train) for client in scenario.clients]
    assert public is not None
    assert method.spec.public_size == len(public.samples.inputs) == 40


def test_one_process_at_a_time(small: Callable[..., Experiment]) -> None:
    experiment = small("solo", rounds=2)

    class Second:
        """Tries to resume the run while it is running."""

        error = ""

        def round(self, event: object) -> None:
            with pytest.raises(UsageError) as refused:
                run(experiment, resume=True)
            self.error = str(refused.value)

        def began(self, *_: object) -> None: ...

        def client(self, *_: object) -> None: ...

        def ended(self) -> None: ...

    second = Second()
    run(experiment, observers=[second])
    assert "another process is running in" in second.error
    assert len(numbers(experiment)) == 2
    with pytest.raises(UsageError, match="holds a run already"):
        run(experiment)


@pytest.mark.parametrize("kind", ["file", "below a file"])
def test_an_impossible_folder_is_one_line(kind: str, small: Callable[..., Experiment], tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    out = tmp_path / "taken" if kind == "file" else tmp_path / "taken" / "run"
    with pytest.raises(UsageError, match=r"taken.* cannot be written"):
        run(small("solo", rounds=1).model_copy(update={"out": out}))


@pytest.mark.parametrize("name", ["experiment.toml", "task.json", "result.json"])
def test_a_full_disk_is_one_line(name: str, small: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch) -> None:
    replace = Path.replace

    def full(self: Path, target: Path) -> Path:
        if Path(target).name == name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", full)
    experiment = small("solo", rounds=1)
    with pytest.raises(StorageError, match=r"could not be written to .* No space left"):
        run(experiment)
    monkeypatch.undo()
    run(experiment, resume=True)
