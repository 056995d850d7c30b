"""What only a GPU can show: captured steps, processes that share a device and lean layers give the numbers of a CPU.

pytest -m gpu
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.helpers import Stop, StopAfter

from fedchoir import Experiment, methods, run
from fedchoir.engines.local.cuda_graphs import CudaGraphTrainer, Passes

pytestmark = pytest.mark.gpu
SELF_SUPERVISED = ("byol", "fedbyol", "fedu", "fedema", "fedfoa", "fedmd-ssl", "feddf-ssl")  # start from random views


def losses(experiment: Experiment) -> list[float]:
    """Every loss of the first round, in order."""
    line = json.loads((experiment.out / "events.jsonl").read_text().splitlines()[0])  # type: ignore[operator]
    return [value for client in line["losses"].values() for name, value in client.items() if name.endswith("loss")]


@pytest.mark.parametrize("name", [n for n in methods.registry() if n not in SELF_SUPERVISED])
def test_first_losses_are_those_of_a_cpu(name: str, small: Callable[..., Experiment]) -> None:
    """One round in float32: the same batches, the same draws, arithmetic in another order."""
    made = [small(name, device, device=device, rounds=1) for device in ("cpu", "cuda")]
    for experiment in made:
        run(experiment)
    expected, found = map(losses, made)
    assert expected
    assert found == pytest.approx(expected, rel=0.03, abs=1e-3)


def test_steps_and_answers_are_captured(small: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch) -> None:
    trainers: list[Any] = []
    made = CudaGraphTrainer.__init__

    def noted(self: CudaGraphTrainer, *arguments: Any, **options: Any) -> None:
        made(self, *arguments, **options)
        trainers.append(self)

    monkeypatch.setattr(CudaGraphTrainer, "__init__", noted)
    run(small("fccl+", device="cuda", rounds=2))
    (trainer,) = trainers
    assert trainer._steps
    assert trainer._passes.captured
    assert not trainer._impossible
    assert not trainer._passes.impossible


def test_teachers_that_are_asked_in_every_step(
    small: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32 their captured answers are those that a CPU gives."""
    asked: list[Passes] = []
    made = Passes.__init__

    def noted(self: Passes, record: Any) -> None:
        made(self, record)
        asked.append(self)

    monkeypatch.setattr(Passes, "__init__", noted)
    moved = {"private_augment": "affine"}
    on_cpu, on_gpu = (small("fccl+", device, device=device, rounds=1, settings=moved) for device in ("cpu", "cuda"))
    run(on_cpu), run(on_gpu)
    assert losses(on_gpu) == pytest.approx(losses(on_cpu), rel=0.03, abs=1e-3)
    _, *teachers = asked  # the first is for answers to others
    assert any(teacher.captured for teacher in teachers)
    assert not any(teacher.impossible for teacher in teachers)


def test_processes_that_share_a_gpu(small: Callable[..., Experiment]) -> None:
    alone, shared = small("fccl+", "alone", device="cuda"), small("fccl+", "shared", devices=("cuda:0", "cuda:0"))
    run(alone), run(shared)
    assert losses(shared) == pytest.approx(losses(alone), rel=0.03, abs=1e-3)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_lean_runs(small: Callable[..., Experiment], precision: str) -> None:
    names = ("mobilenet_v2@0.25", "resnet10@4", "simple_cnn@4")
    plain, quick = (
        small("fccl+", label, device="cuda", precision=precision, models=names, compile=label == "quick")
        for label in ("plain", "quick")
    )
    run(plain), run(quick)
    assert losses(quick) == pytest.approx(losses(plain), rel=0.1)


def test_a_killed_run_goes_on(small: Callable[..., Experiment]) -> None:
    whole, parts = small("fccl+", "whole", device="cuda", rounds=3), small("fccl+", "parts", device="cuda", rounds=3)
    run(whole)

    class Stop(Exception):
        pass

    class Stopping:
        def began(self, *_: Any) -> None: ...
        def client(self, *_: Any) -> None: ...
        def ended(self) -> None: ...
        def round(self, event: dict[str, Any]) -> None:
            if event["round"] == 1:
                raise Stop

    with pytest.raises(Stop):
        run(parts, observers=[Stopping()])
    torch.cuda.empty_cache()
    resumed = run(parts, resume=True)
    assert resumed.rounds == 3
    lines = [(e.out / "events.jsonl").read_text().splitlines() for e in (whole, parts)]  # type: ignore[operator]
    assert len(lines[0]) == len(lines[1])


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "krum"])
def test_robust_rules_take_answers_from_a_gpu(rule: str, small: Callable[..., Experiment]) -> None:
    """Tensors are on the GPU, the numbers beside them are not."""
    assert run(small("fccl+", device="cuda", rounds=1, settings={"robust": rule})).rounds == 1


def test_correlations_of_before_and_after_a_resume_are_in_one_place(small: Callable[..., Experiment]) -> None:
    """Only some take part in a round, so what others told before the kill comes from the checkpoint."""
    experiment = small("fedfoa", device="cuda", rounds=4, settings={"fraction": 0.67, "t_warm": 1})
    with pytest.raises(Stop):
        run(experiment, observers=[StopAfter(1)])
    assert run(experiment, resume=True).rounds == 4
