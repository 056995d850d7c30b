"""Devices by name and by number."""

from __future__ import annotations

import pytest
import torch

from fedchoir.utils.devices import describe, pick_device, pick_devices
from fedchoir.utils.errors import UsageError


def test_auto_takes_a_gpu_if_there_is_one() -> None:
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (("tpu9", "cpu"), "--devices 'tpu9' is not possible: it should be auto, cpu, cuda or cuda:N"),
        (("0",), "--devices 0 is not possible: it should be 1 or more"),
    ],
)
def test_wrong_names_are_one_line(names: tuple[str, ...], line: str) -> None:
    with pytest.raises(UsageError) as error:
        pick_devices(names, "cpu")
    assert str(error.value).startswith(line)


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="torch sees no GPU here"):
        pick_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UsageError, match="torch sees 1 GPU here"):
        pick_device("cuda:1")


def test_several_devices_in_words() -> None:
    cpu = torch.device("cpu")
    assert describe([cpu]).startswith("cpu, ")
    assert describe([cpu, cpu]).startswith("2 processes: cpu, ")
