"""The engine for the devices that a run was given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch

from fedchoir.data.public import PublicSet
from fedchoir.data.scenarios import Scenario
from fedchoir.engines.local import LocalEngine, Progress
from fedchoir.engines.parallel.engine import ParallelEngine
from fedchoir.federation.loop import Engine
from fedchoir.methods.method import Method


@contextmanager
def started_engine(
    method: Method,
    scenario: Scenario,
    public: PublicSet | None,
    *,
    devices: Sequence[torch.device],
    precision: str,
    progress: Progress,
) -> Iterator[Engine]:
    """All clients in this process on one device, or shared out over processes where there are several.

    A GPU that is named (``cuda:1``) is made torch's current one: that is where steps are captured.
    """
    if len(devices) == 1:
        (device,) = devices
        named = device.type == "cuda" and device.index is not None
        with torch.cuda.device(device) if named else nullcontext():
            yield LocalEngine(method, scenario, public, device=device, precision=precision, progress=progress)
        return
    with ParallelEngine(method, scenario, public, devices=devices, precision=precision, progress=progress) as engine:
        yield engine
