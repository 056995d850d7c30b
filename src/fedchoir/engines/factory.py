"""Creates the engine for the devices of a run."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from importlib.util import find_spec
from typing import Any

import torch

from fedchoir.core.federation_spec import FederationSpec
from fedchoir.core.settings import Settings
from fedchoir.data.public import PublicSet
from fedchoir.data.scenario import Scenario
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.engines.local.kernel_cache import use_kernel_cache
from fedchoir.engines.multiprocess.engine import MultiprocessEngine
from fedchoir.methods.base import Method
from fedchoir.models.spec import ModelSpec
from fedchoir.utils.errors import UsageError


@contextmanager
def started_engine(
    method: Method,
    scenario: Scenario,
    public: PublicSet | None,
    *,
    devices: Sequence[torch.device],
    fused: bool = False,
    **options: Any,
) -> Iterator[LocalEngine | MultiprocessEngine]:
    """All clients in this process on one device, or one process for each of several devices. ``options`` are those of
    both engines.

    A GPU with an index (``cuda:1``) becomes torch's current one, because CUDA graphs are captured there.
    """
    if fused:
        check_fused(devices, method.params)
        use_kernel_cache(devices[0])
    first, *more = devices
    engine: LocalEngine | MultiprocessEngine
    with torch.cuda.device(first) if not more and first.type == "cuda" and first.index is not None else nullcontext():
        if more:
            check_objects(method.spec)
            engine = MultiprocessEngine(method, scenario, public, devices=devices, fused=fused, **options)
        else:
            engine = LocalEngine(method, scenario, public, device=first, fused=fused, **options)
        with closing(engine):
            yield engine


def check_objects(spec: FederationSpec) -> None:
    """Raise `UsageError` if a model is a Python object, which other processes do not have."""
    if objects := [info.model for info in spec.clients if ModelSpec.parse(info.model).kind == "object"]:
        raise UsageError(
            f"model '{objects[0]}' is a Python object of this process, and each of several devices has a process of "
            "its own: use one device, or write a factory and give FILE.py:FACTORY"
        )


def check_fused(devices: Sequence[torch.device], params: Settings) -> None:
    """Raise `UsageError` if fused layers are not possible here."""
    if any(device.type != "cuda" for device in devices):
        raise UsageError("--fused is not possible: it is for GPUs; leave it out")
    if params.dp_noise:
        raise UsageError("--fused is not possible with dp_noise: fused layers have no per-sample gradients")
    if find_spec("triton") is None:
        raise UsageError("--fused is not possible: it needs Triton, which comes with torch on Linux")
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        raise UsageError("--fused is not possible: it needs a C compiler, such as gcc")
