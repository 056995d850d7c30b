"""``python -m fedchoir.engines.local.fused.compile_worker``: compiles kernels for its parent, without a GPU."""

# mypy: disable-error-code="import-untyped"

import json
from contextlib import suppress
from importlib import import_module
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from fedchoir.utils.subprocess_channel import Channel, parent_channel


class TargetOnly:
    """Stands in for Triton's driver: kernels are compiled for a kind of GPU, and none is needed for that."""

    def __init__(self, backend: str, arch: int, warp_size: int) -> None:
        self._target = GPUTarget(backend, arch, warp_size)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def serve(channel: Channel) -> None:
    """Compile one kernel after the other into the cache on disk, until the parent is gone. An answer is Triton's key of
    what was compiled, or an empty one and the reason."""
    driver.set_active(TargetOnly(*json.loads(channel.receive()[0])))
    while True:
        module, name, description = (part.decode() for part in channel.receive())
        try:
            kernel = getattr(import_module(module), name).preload(description)
        except Exception as error:
            reason = (str(error).splitlines() or ["no reason given"])[0]
            channel.send([b"", f"{type(error).__name__}: {reason}".encode()])
        else:
            build_launcher(kernel)
            channel.send([kernel.hash.encode(), b""])


def build_launcher(kernel: Any) -> None:
    """Compile the C function that calls a kernel into the cache, where its first launch finds it.

    What fails here is left to that launch: there is no libcuda, say.
    """
    if driver.active.get_current_target().backend == "cuda":
        with suppress(Exception):
            from triton.backends.nvidia.driver import CudaLauncher

            CudaLauncher(kernel.src, kernel.metadata)


if __name__ == "__main__":
    serve(parent_channel())
