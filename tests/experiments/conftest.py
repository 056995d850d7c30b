"""Sweep files of runs that take a second."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedchoir.utils.stop_signals import STOPS

collect_ignore = ["slow_training.py"]  # a plug-in for other processes: importing it here would slow all tests down
SMALL = {"image_size": 16, "local_epochs": 1, "local_batch": 16, "public_size": 16, "public_batch": 8}


@pytest.fixture
def default_signals() -> Iterator[None]:
    """Signals stop a process, also where the tests run in the background, which ignores Ctrl-C."""
    handlers: dict[signal.Signals, Any] = dict.fromkeys(STOPS, signal.SIG_DFL)
    handlers[signal.SIGINT] = signal.default_int_handler
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def sweep_of(shapes: Path, public_shapes: Path, tmp_path: Path) -> Callable[..., Path]:
    """Writes a sweep file of quick runs."""

    def write(name: str = "quick", rounds: int = 2, **grid: list[Any]) -> Path:
        base = {"scenario": str(shapes), "public": str(public_shapes), "models": "simple_cnn@4", "rounds": rounds}
        values = {"base": {**base, "device": "cpu", "settings": SMALL}, "grid": grid}
        path = tmp_path / f"{name}.toml"
        path.write_text(tomli_w.dumps(values))
        return path

    return write
