"""The engine for the devices that a run was given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

import torch

from fedchoir.data.public import PublicSet
from fedchoir.data.scenarios import Scenario
from fedchoir.engines.fused import check_fusing
from fedchoir.engines.local import STATE_BUDGET, LocalEngine, Progress
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
    fused: bool = False,
    progress: Progress,
    budget: float = STATE_BUDGET,
    folder: Path | None = None,
) -> Iterator[Engine]:
    """All clients in this process on one device, or shared out over processes where there are several, each with its
    part of the budget for clients' states.

    A GPU that is named (``cuda:1``) is made torch's current one: that is where steps are captured.
    """
    if fused:
        check_fusing(devices, method.params)
    if len(devices) == 1:
        (device,) = devices
        named = device.type == "cuda" and device.index is not None
        with torch.cuda.device(device) if named else nullcontext():
            local = LocalEngine(
                method, scenario, public, device=device, precision=precision, fused=fused, progress=progress,
                budget=budget, folder=folder,
            )  # fmt: skip
            with closing(local):
                yield local
        return
    with ParallelEngine(
        method,
        scenario,
        public,
        devices=devices,
        precision=precision,
        fused=fused,
        progress=progress,
        budget=budget,
        folder=folder,
    ) as engine:
        yield engine
