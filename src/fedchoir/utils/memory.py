"""Memory of this machine and of this process, on the host and on its NVIDIA GPUs, read without CUDA.

A process that asked CUDA would take GPU memory itself, and under MPS it could die with another one.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

KIB = 2**10
CGROUP = Path("/sys/fs/cgroup")
LIMITS = {
    "memory.max": ("memory.current", "memory.stat", "inactive_file"),
    "memory/memory.limit_in_bytes": (
        "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"
    ),
}  # fmt: skip
"""Files of a control group, version 2 and 1: its limit, what it uses, and the line with its cached files."""


def free_host_memory() -> int:
    """Bytes that processes may still take without swapping, also within the limit of a container; 0 on systems
    without /proc, where it is not known."""
    try:
        available = _fields(Path("/proc/meminfo"))["MemAvailable"]
    except (OSError, KeyError):
        return 0
    left = _left_in_container()
    return available if left is None else max(0, min(available, left))


def _left_in_container() -> int | None:
    """Bytes below the limit of this control group, if it has one. Cached files count as free."""
    for limit, (used, statistics, cached) in LIMITS.items():
        with suppress(OSError, ValueError):  # no such group, or "max"
            left = int((CGROUP / limit).read_text()) - int((CGROUP / used).read_text())
            lines = map(str.split, (CGROUP / statistics).read_text().splitlines())
            return left + next((int(value) for name, value in lines if name == cached), 0)
    return None


def forget_peak() -> None:
    """Count `peak_host_memory` from now on, where the system can do that."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_host_memory() -> int:
    """The most bytes that this process and its children had at a time, each on its own, without the files that
    processes map together, such as torch's libraries."""
    own = [_peak(pid) for pid in (os.getpid(), *_descendants(os.getpid()))]
    return sum(own) or _peak_without_proc()


def _peak(pid: int) -> int:
    try:
        status = _fields(Path(f"/proc/{pid}/status"))
        return max(0, status["VmHWM"] - status.get("RssFile", 0))
    except (OSError, KeyError):  # it has ended
        return 0


def _peak_without_proc() -> int:
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * KIB


def _descendants(pid: int) -> Iterator[int]:
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, listed.read_text().split()):
                yield child
                yield from _descendants(child)


def _fields(path: Path) -> dict[str, int]:
    """Bytes by name, of lines such as ``VmHWM:   1024 kB``."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * KIB for words in lines if words[2:] == ["kB"]}


class _GpuMemory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def gpu_memory(number: int) -> tuple[int, int]:
    """Free and all bytes of a GPU by its number in CUDA; (0, 0) where NVIDIA's library does not tell."""
    library = _nvml()
    if library is None:
        return 0, 0
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    name = visible[number] if number < len(visible) else str(number)
    handle, memory = ctypes.c_void_p(), _GpuMemory()
    if name.isdecimal():
        failed = library.nvmlDeviceGetHandleByIndex_v2(int(name), ctypes.byref(handle))
    else:
        failed = library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle))
    if failed or library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
        return 0, 0
    return memory.free, memory.total


@cache
def _nvml() -> Any:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return None if library.nvmlInit_v2() else library
