"""``fedchoir warmup``: what it runs and where it keeps kernels. Compiling needs a GPU (tests/engines/test_gpu.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fedchoir import Experiment
from fedchoir.cli.app import app
from fedchoir.engines.local import kernel_cache
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.prepare import prepare
from fedchoir.experiments.warmup import few_batches, short_round, warm_up
from fedchoir.utils.errors import UsageError


def test_on_a_cpu_there_is_nothing_to_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["warmup", "fccl+", "--scenario", "heart", "--device", "cpu"])
    assert done.exit_code == 0
    assert done.output.startswith("nothing to compile: on a CPU")
    assert done.output.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_mistake_is_reported_on_any_machine(small: Callable[..., Experiment]) -> None:
    with pytest.raises(UsageError, match="no_such"):
        warm_up(small("fccl+", settings={"no_such": 1}))


def test_every_kind_of_batch_occurs_once(small: Callable[..., Experiment]) -> None:
    plan = make_plan(small("fccl+", settings={"local_batch": 7, "public_batch": 11, "public_size": 40}))
    whole = prepare(plan)
    method, scenario, public = few_batches(plan, *whole)
    assert [len(data.train) for data in scenario.clients] == [7 + len(d.train) % 7 for d in whole[1].clients]
    assert public is not None
    assert len(public) == method.spec.public_size == 11 + 40 % 11
    assert [info.train for info in method.spec.clients] == [len(data.train) for data in scenario.clients]


@pytest.mark.parametrize("name", ["fccl+", "fccl", "fedavg"])
def test_the_short_round_runs_every_phase_and_writes_nothing(name: str, small: Callable[..., Experiment]) -> None:
    experiment = small(name, rounds=9)
    (event,) = short_round(make_plan(experiment), [torch.device("cpu")], fused=False)
    assert event["round"] == 0
    assert set(event["losses"]) == set(event["clients"])
    assert all(losses["local_loss"] > 0 for losses in event["losses"].values())
    assert event["accuracy"] is not None
    assert experiment.out is not None
    assert not experiment.out.exists()


def test_kernels_are_kept_by_version_and_kind_of_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDCHOIR_CACHE", str(tmp_path))
    monkeypatch.delenv(kernel_cache.VARIABLE, raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    folder = kernel_cache.use_kernel_cache(torch.device("cuda"))
    assert folder.parent == tmp_path / "kernels"
    assert f"torch-{torch.__version__}" in folder.name
    assert folder != kernel_cache.kernel_folder((8, 0))
    triton = pytest.importorskip("triton")
    assert triton.knobs.cache.dir == str(folder)
    monkeypatch.setenv(kernel_cache.VARIABLE, str(tmp_path / "mine"))
    assert kernel_cache.use_kernel_cache(torch.device("cuda")) == tmp_path / "mine"
    for name in ("a/one.cubin", "b/two.cubin", "b/two.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    assert kernel_cache.compiled_kernels(folder) == 2
