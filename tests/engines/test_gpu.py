"""What only a GPU can show: captured steps, processes that share a device and fused layers give a CPU's numbers.

pytest -m gpu
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import Stop, StopAfter, events

from fedchoir import Experiment, methods, run
from fedchoir.core.checkpoint_writer import host_copy
from fedchoir.engines.local.cuda_graphs import CudaGraphTrainer, ForwardGraphs
from fedchoir.engines.local.kernel_cache import compiled_kernels
from fedchoir.experiments.warmup import warm_up

pytestmark = pytest.mark.gpu
SELF_SUPERVISED = (
    "byol",
    "fedbyol",
    "fedu",
    "fedema",
    "fedfoa",
    "fedmd-ssl",
    "ensemble-ssl",
)  # start from random views


def losses(experiment: Experiment) -> list[float]:
    """Every loss of the first round, in order."""
    first = events(experiment)[0]
    return [value for client in first["losses"].values() for name, value in client.items() if name.endswith("loss")]


def created(cls: type, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All objects of a class that are created from now on."""
    objects: list[Any] = []
    initialize = cls.__init__

    def recorded(self: Any, *arguments: Any, **options: Any) -> None:
        initialize(self, *arguments, **options)
        objects.append(self)

    monkeypatch.setattr(cls, "__init__", recorded)
    return objects


@pytest.mark.parametrize("name", [n for n in methods.registry() if n not in SELF_SUPERVISED])
def test_first_losses_are_those_of_a_cpu(name: str, small: Callable[..., Experiment]) -> None:
    """One round in float32: the same batches and draws, arithmetic in another order."""
    on_cpu, on_gpu = (small(name, device, device=device, rounds=1) for device in ("cpu", "cuda"))
    run(on_cpu), run(on_gpu)
    assert losses(on_cpu)
    assert losses(on_gpu) == pytest.approx(losses(on_cpu), rel=0.03, abs=1e-3)


def test_steps_and_forward_passes_are_captured(
    small: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainers = created(CudaGraphTrainer, monkeypatch)
    run(small("fccl+", device="cuda", rounds=2))
    (trainer,) = trainers
    assert trainer._steps
    assert trainer._forwards.captured
    assert not trainer._impossible
    assert not trainer._forwards.impossible


def test_teachers_are_captured(small: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 their captured outputs are those of a CPU."""
    graphs = created(ForwardGraphs, monkeypatch)
    augmented = {"private_augment": "affine"}
    on_cpu, on_gpu = (small("fccl+", device, device=device, rounds=1, settings=augmented) for device in ("cpu", "cuda"))
    run(on_cpu), run(on_gpu)
    assert losses(on_gpu) == pytest.approx(losses(on_cpu), rel=0.03, abs=1e-3)
    _, *teachers = graphs  # the first is the trainer's own
    assert any(teacher.captured for teacher in teachers)
    assert not any(teacher.impossible for teacher in teachers)


def test_processes_that_share_a_gpu(small: Callable[..., Experiment]) -> None:
    alone, shared = small("fccl+", "alone", device="cuda"), small("fccl+", "shared", devices=("cuda:0", "cuda:0"))
    run(alone), run(shared)
    assert losses(shared) == pytest.approx(losses(alone), rel=0.03, abs=1e-3)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_runs_with_fused_layers(small: Callable[..., Experiment], precision: str) -> None:
    names = ("mobilenet_v2@0.25", "resnet10@4", "simple_cnn@4")
    plain, fused = (
        small("fccl+", label, device="cuda", precision=precision, models=names, fused=label == "fused")
        for label in ("plain", "fused")
    )
    run(plain), run(fused)
    assert losses(fused) == pytest.approx(losses(plain), rel=0.1)


def test_a_killed_run_resumes(small: Callable[..., Experiment]) -> None:
    whole, killed = (small("fccl+", name, device="cuda", rounds=3) for name in ("whole", "killed"))
    run(whole)
    with pytest.raises(Stop):
        run(killed, observers=[StopAfter(1)])
    torch.cuda.empty_cache()
    assert run(killed, resume=True).rounds == 3
    assert len(events(whole)) == len(events(killed))


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "krum"])
def test_robust_rules_accept_payloads_from_a_gpu(rule: str, small: Callable[..., Experiment]) -> None:
    assert run(small("fccl+", device="cuda", rounds=1, settings={"robust": rule})).rounds == 1


def test_correlations_from_before_a_resume_are_on_the_same_device(small: Callable[..., Experiment]) -> None:
    """Only some clients take part in a round, so the others' correlations come from the checkpoint."""
    experiment = small("fedfoa", device="cuda", rounds=4, settings={"fraction": 0.67, "t_warm": 1})
    with pytest.raises(Stop):
        run(experiment, observers=[StopAfter(1)])
    assert run(experiment, resume=True).rounds == 4


def test_a_snapshot_of_a_gpu_is_pinned_and_does_not_change() -> None:
    weights = torch.rand(2, 8, 4, 4, device="cuda").contiguous(memory_format=torch.channels_last)
    expected = weights.cpu()
    (copy,) = host_copy({"w": weights}).values()
    weights.zero_()
    assert copy.is_pinned()
    assert torch.equal(copy, expected)


def test_warming_up_compiles_what_a_run_needs(
    small: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "kernels"))
    experiment = small("fccl+", device="cuda", models=("mobilenet_v2@0.25", "resnet10@4"), fused=True, rounds=1)
    assert warm_up(experiment).startswith("compiled ")
    count = compiled_kernels(tmp_path / "kernels")
    assert count > 0
    run(experiment)
    assert compiled_kernels(tmp_path / "kernels") == count
