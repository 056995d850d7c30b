"""Which engine runs on which devices, and why fused layers are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fedchoir import Experiment, run
from fedchoir.core.settings import Settings
from fedchoir.engines import factory
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.engines.multiprocess.engine import MultiprocessEngine
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.prepare import prepare
from fedchoir.utils.errors import UsageError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(("devices", "kind"), [([CPU], LocalEngine), ([CPU, CPU], MultiprocessEngine)])
def test_several_devices_mean_several_processes(
    devices: list[torch.device], kind: type, small: Callable[..., Experiment]
) -> None:
    method, scenario, public = prepare(make_plan(small("fedavg")))
    with factory.started_engine(method, scenario, public, devices=devices) as engine:
        assert type(engine) is kind
        assert [len(found.tests) for found in engine.evaluate(None, 0, "accuracy")] == [3, 3, 3]


def test_fused_layers_are_refused_on_a_cpu(small: Callable[..., Experiment]) -> None:
    experiment = small("solo", fused=True)
    with pytest.raises(UsageError, match="--fused is not possible: it is for GPUs"):
        run(experiment)
    assert not (experiment.out / "events.jsonl").exists()  # type: ignore[operator]


@pytest.mark.parametrize(("absent", "line"), [("find_spec", "needs Triton"), ("which", "needs a C compiler")])
def test_what_fused_layers_lack_is_named(absent: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory.shutil if absent == "which" else factory, absent, lambda name: None)
    with pytest.raises(UsageError, match=f"--fused is not possible: it {line}"):
        factory.check_fused([CUDA], Settings())


def test_fused_layers_have_no_per_sample_gradients() -> None:
    with pytest.raises(UsageError, match="--fused is not possible with dp_noise"):
        factory.check_fused([CUDA], Settings(dp_noise=1.0))
