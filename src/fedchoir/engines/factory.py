"""The engine for the devices that a run was given."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from fedchoir.core.server import Engine
from fedchoir.data.public import PublicSet
from fedchoir.data.scenario import Scenario
from fedchoir.engines.local.engine import STATE_BUDGET, LocalEngine, Progress
from fedchoir.engines.multiprocess.engine import MultiprocessEngine
from fedchoir.methods.base import Method
from fedchoir.utils.errors import UsageError


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
        _check_fused(devices, method.params)
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
    with MultiprocessEngine(
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


def _check_fused(devices: Sequence[torch.device], params: Any) -> None:
    """Say in one line why ``--fused`` is not possible, if it is not."""
    if any(device.type != "cuda" for device in devices):
        raise UsageError("--fused is not possible: it is for GPUs; leave it out")
    if params.dp_noise:
        raise UsageError("--fused is not possible with dp_noise: gradients of single images are taken in another way")
    if find_spec("triton") is None:
        raise UsageError("--fused is not possible: it needs Triton, which comes with torch on Linux")
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        raise UsageError("--fused is not possible: it needs a C compiler, such as gcc")
