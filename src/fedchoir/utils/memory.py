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
OWN_GROUPS = Path("/proc/self/cgroup")
V2 = ("memory.max", "memory.current", "inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
"""Files of a control group, version 2 and 1: its limit and what it uses; and the line of ``memory.stat`` for cached
files."""


def free_host_memory() -> int:
    """Bytes that processes may still take without swapping, also within the limit of a container or of a job; 0 on
    systems without /proc, where it is not known."""
    try:
        available = _fields(Path("/proc/meminfo"))["MemAvailable"]
    except (OSError, KeyError):
        return 0
    return max(0, min([available, *_left_in_groups()]))


def _left_in_groups() -> Iterator[int]:
    """Bytes below each limit that holds for this process: of its control group and of those around it. Cached files
    count as free."""
    for folder, (limit, used, cached) in _groups():
        with suppress(OSError, ValueError):  # it is not visible in a container, or its limit is "max"
            left = int((folder / limit).read_text()) - int((folder / used).read_text())
            lines = map(str.split, (folder / "memory.stat").read_text().splitlines())
            yield left + next((int(value) for name, value in lines if name == cached), 0)


def _groups() -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """The folders of this process's control groups and of those around them, with the names of their files."""
    try:
        lines = OWN_GROUPS.read_text().splitlines()
    except OSError:
        return
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if not controllers or "memory" in controllers.split(","):
            top, files = (CGROUP / "memory", V1) if controllers else (CGROUP, V2)
            own = top / path.lstrip("/")
            yield from ((folder, files) for folder in (own, *own.parents) if folder.is_relative_to(top))


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


def gpu_memory(name: str) -> tuple[int, int]:
    """Free and all bytes of a GPU by the name that NVIDIA gives it (``GPU-…``), because CUDA may number them in another
    order than NVIDIA's library; (0, 0) where that library does not tell."""
    library = _nvml()
    if library is None:
        return 0, 0
    handle, memory = ctypes.c_void_p(), _GpuMemory()
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
