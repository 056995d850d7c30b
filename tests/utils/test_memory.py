"""Memory that processes really have, and what is left of a limit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedchoir.utils import memory
from fedchoir.utils.memory import forget_peak, free_host_memory, gpu_memory, peak_host_memory

MIB = 2**20
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")

PEAKS = """
import subprocess, sys
from fedchoir.utils.memory import forget_peak, peak_host_memory
MIB = 2**20
print(peak_host_memory())
block = bytearray(200 * MIB)  # its pages are zeros until they are written
block[:] = b"x" * len(block)
print(peak_host_memory())
del block
print(peak_host_memory())
forget_peak()
print(peak_host_memory())
child = "import sys; block = b'x' * (100 * 2**20); print('ready', flush=True); sys.stdin.read()"
child = subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(peak_host_memory())
child.communicate()
print(peak_host_memory())
"""


@LINUX
def test_the_peak_of_a_process_and_its_children() -> None:
    printed = subprocess.run([sys.executable, "-c", PEAKS], capture_output=True, text=True, check=True).stdout
    start, full, freed, forgotten, with_child, alone = (int(line) / MIB for line in printed.split())
    assert 0 < start < 100
    assert full - start > 199
    assert freed == pytest.approx(full, abs=5)
    assert forgotten == pytest.approx(start, abs=20)
    assert with_child - forgotten > 99
    assert alone == pytest.approx(forgotten, abs=5)


@LINUX
def test_files_that_processes_map_together_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * (100 * MIB))
    read = (
        "import mmap, sys\n"
        "from fedchoir.utils.memory import peak_host_memory\n"
        "with open(sys.argv[1], 'rb') as file:\n"
        "    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\n"
        "    sum(mapped[::4096])\n"
        "    print(peak_host_memory())\n"
    )
    command = [sys.executable, "-c", read, str(tmp_path / "large")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(printed) < 100 * MIB


@LINUX
def test_free_memory_is_what_the_system_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(lines["MemAvailable"].split()[0]) * 1024
    assert free_host_memory() == pytest.approx(available, rel=0.2)


V2 = ("memory.max", "memory.current", "inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
NO_LIMIT = {V2: "max", V1: "9223372036854771712"}


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes a control group of a version, with a limit, the bytes that it uses and, of them, those of cached files."""
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    monkeypatch.setattr(memory, "OWN_GROUPS", tmp_path / "own")

    def make(version: tuple[str, ...], path: str, limit: int | None, used: int, cached: int = 0) -> None:
        folder = tmp_path / ("memory" if version is V1 else "") / path
        folder.mkdir(parents=True, exist_ok=True)
        texts = (NO_LIMIT[version] if limit is None else limit, used, f"anon 1\n{version[2]} {cached}")
        for name, text in zip((*version[:2], "memory.stat"), texts, strict=True):
            (folder / name).write_text(f"{text}\n")

    return make


def own_groups(folder: Path, version: tuple[str, ...], path: str) -> None:
    """What /proc/self/cgroup says, where also other controllers have groups."""
    line = f"0::{path}" if version is V2 else f"4:cpu,memory:{path}\n1:cpu:/other\n0::/"
    (folder / "own").write_text(f"9:name=systemd:/user.slice\n{line}\n")


@LINUX
@pytest.mark.parametrize("version", [V2, V1])
def test_the_limit_of_a_container(version: tuple[str, ...], groups: Callable[..., None], tmp_path: Path) -> None:
    """Whether it sees its own group as the root, or a path on the machine that it does not see."""
    without = free_host_memory()
    for path in ("/", "/docker/0123", "/../.."):
        own_groups(tmp_path, version, path)
        groups(version, "", limit=60_000_000, used=50_000_000, cached=20_000_000)
        assert free_host_memory() == 30_000_000
        groups(version, "", limit=60_000_000, used=90_000_000, cached=20_000_000)
        assert free_host_memory() == 0
        groups(version, "", limit=None, used=90_000_000)
        assert free_host_memory() == pytest.approx(without, rel=0.2)


@LINUX
@pytest.mark.parametrize("version", [V2, V1])
def test_the_limit_of_a_job_is_the_smallest_one_on_the_way_to_its_group(
    version: tuple[str, ...], groups: Callable[..., None], tmp_path: Path
) -> None:
    """As in a job of Slurm or with `systemd-run -p MemoryMax`, where the root has no limit."""
    own_groups(tmp_path, version, "/system.slice/job_7/step_0")
    groups(version, "system.slice", limit=900_000_000, used=850_000_000)
    groups(version, "system.slice/job_7", limit=80_000_000, used=60_000_000, cached=1_000_000)
    groups(version, "system.slice/job_7/step_0", limit=None, used=10_000_000)
    groups(version, "system.slice/job_8", limit=5_000_000, used=5_000_000)
    assert free_host_memory() == 21_000_000
    groups(version, "system.slice", limit=900_000_000, used=890_000_000)
    assert free_host_memory() == 10_000_000
    groups(version, "system.slice/job_7/step_0", limit=12_000_000, used=10_000_000)
    assert free_host_memory() == 2_000_000


def test_without_proc_free_memory_is_not_known_and_the_peak_is_that_of_the_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(path: Path) -> dict[str, int]:
        raise FileNotFoundError(path)

    monkeypatch.setattr(memory, "_fields", missing)
    assert free_host_memory() == 0
    assert peak_host_memory() > 10 * MIB
    forget_peak()


class Nvml:
    """NVIDIA's library on a machine with two GPUs of 24 and 80 GB."""

    TOTALS = {b"GPU-small": 24, b"GPU-large": 80, b"MIG-part": 10}

    def __init__(self) -> None:
        self.handles: dict[int, int] = {}

    def nvmlDeviceGetHandleByUUID(self, name: bytes, handle: Any) -> int:
        self.handles[id(handle._obj)] = self.TOTALS.get(name, 0)
        return int(name not in self.TOTALS)

    def nvmlDeviceGetMemoryInfo(self, handle: Any, found: Any) -> int:
        found._obj.total = self.handles[id(handle)]
        found._obj.free = found._obj.total - 1
        return 0


def test_a_gpu_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_nvml", Nvml)
    assert gpu_memory("GPU-small") == (23, 24)
    assert gpu_memory("GPU-large") == (79, 80)
    assert gpu_memory("GPU-none") == (0, 0)


def test_without_the_library_memory_of_a_gpu_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_nvml", lambda: None)
    assert gpu_memory("GPU-small") == (0, 0)
