"""The memory that a run reports, by place."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fedchoir import Experiment
from fedchoir.experiments import run_memory
from fedchoir.experiments.placement import HOST
from fedchoir.experiments.run_memory import CONTEXT, RunMemory

GB = 10**9


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA counts the fastest first, NVIDIA's library by their place in the machine: their names are the same."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda number: (5 + number) * GB)
    properties = [SimpleNamespace(uuid="large"), SimpleNamespace(uuid="small")]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: properties[number])
    monkeypatch.setattr(run_memory, "gpu_memory", {"GPU-large": (70 * GB, 80 * GB), "GPU-small": (9, 24 * GB)}.get)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("device", "devices", "used"),
    [
        ("cuda", None, {"GPU-large": 5 * GB + CONTEXT}),
        ("cuda:1", None, {"GPU-small": 6 * GB + CONTEXT}),
        ("cuda", ("cuda:0", "cuda:1"), {"GPU-large": 80 * GB, "GPU-small": 24 * GB}),
        ("cpu", None, {}),
    ],
)
def test_gpus_are_named_as_by_the_library_that_reads_their_free_memory(
    device: str, devices: tuple[str, ...] | None, used: dict[str, int]
) -> None:
    peak = RunMemory().peak(Experiment(method="solo", device=device, devices=devices))
    assert peak.pop(HOST) > 0
    assert peak == used


@pytest.mark.usefixtures("two_gpus")
def test_a_part_of_a_gpu_keeps_the_name_by_which_it_was_made_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-part")
    assert RunMemory().peak(Experiment(method="solo", device="cuda")).keys() == {HOST, "MIG-part"}
