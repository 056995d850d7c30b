"""Devices by name: the first GPU if there is one, and one line for a device that is not there."""

from __future__ import annotations

import pytest
import torch

from fedchoir.utils.devices import describe, pick_device, pick_devices
from fedchoir.utils.errors import UsageError


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index or 0}")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def names(devices: list[torch.device]) -> list[str]:
    return [str(device) for device in devices]


@pytest.mark.usefixtures("gpus")
def test_with_gpus() -> None:
    assert names([pick_device(name) for name in ("auto", "cpu", "cuda:1")]) == ["cuda", "cpu", "cuda:1"]
    assert names(pick_devices(("2",), "auto")) == ["cuda:0", "cuda:1"]
    assert names(pick_devices(("cuda:1", "cuda:1", "cpu"), "auto")) == ["cuda:1", "cuda:1", "cpu"]
    assert names(pick_devices(("3",), "cpu")) == ["cpu"] * 3
    with pytest.raises(UsageError, match="--device cuda:2: torch sees 2 GPU"):
        pick_device("cuda:2")
    with pytest.raises(UsageError, match="--devices cuda:2"):
        pick_devices(("3",), "cuda")


@pytest.mark.usefixtures("no_gpu")
def test_without_gpu() -> None:
    assert names([pick_device("auto")]) == ["cpu"]
    assert names(pick_devices(None, "auto")) == names(pick_devices((), "auto")) == ["cpu"]
    with pytest.raises(UsageError, match="--device cuda: torch sees no GPU here"):
        pick_device("cuda")


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "", "CPU please"])
def test_a_name_that_is_no_device_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="it should be auto, cpu, cuda or cuda:N"):
        pick_device(name)


def test_no_device_at_all_is_refused() -> None:
    with pytest.raises(UsageError, match="it should be 1 or more"):
        pick_devices(("0",), "cpu")


@pytest.mark.usefixtures("gpus")
def test_a_result_describes_its_devices() -> None:
    threads = torch.get_num_threads()
    assert describe([torch.device("cpu")]) == f"cpu, {threads} threads"
    assert describe([torch.device("cuda:1")]) == "GPU 1"
    assert describe([torch.device("cuda:0"), torch.device("cuda:1")]) == "2 processes: GPU 0, GPU 1"
