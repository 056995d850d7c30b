"""Devices are named or counted."""

from __future__ import annotations

import json

import pytest
import torch

from fedchoir import Experiment
from fedchoir.utils.devices import describe, pick_devices
from fedchoir.utils.errors import UsageError

CPU = torch.device("cpu")


def test_a_number_means_so_many_processes() -> None:
    assert pick_devices(None, "cpu") == [CPU]
    assert pick_devices(("2",), "cpu") == [CPU, CPU]
    assert describe([CPU, CPU]).startswith("2 processes: cpu, ")


def test_an_experiment_accepts_a_number_or_a_list() -> None:
    assert Experiment(method="fedavg", devices=2).devices == ("2",)  # type: ignore[arg-type]
    assert Experiment(method="fedavg", devices="cuda:0, cuda:1").devices == ("cuda:0", "cuda:1")  # type: ignore[arg-type]
    assert json.loads(Experiment(method="fedavg", devices=("cpu", "cpu")).model_dump_json())["devices"] == ["cpu"] * 2


def test_impossible_devices_are_refused() -> None:
    with pytest.raises(UsageError, match="1 or more"):
        pick_devices(("0",), "cpu")
    with pytest.raises(UsageError, match=r"--devices 'gpu0' is not possible"):
        pick_devices(("gpu0", "cpu"), "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_a_missing_gpu_is_refused() -> None:
    with pytest.raises(UsageError, match="torch sees no GPU"):
        pick_devices(("cuda:0", "cuda:1"), "auto")
