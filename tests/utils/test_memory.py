"""Memory that processes really have, and what is left of a limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


@LINUX
@pytest.mark.parametrize(
    ("limit", "used", "statistics", "cached"),
    [
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
            "total_inactive_file",
        ),
    ],
)
def test_the_limit_of_a_container(
    limit: str, used: str, statistics: str, cached: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    without = free_host_memory()
    (tmp_path / "memory").mkdir()
    (tmp_path / used).write_text("50000000\n")
    (tmp_path / statistics).write_text(f"anon 1\n{cached} 20000000\n")
    (tmp_path / limit).write_text("60000000\n")
    assert free_host_memory() == 30_000_000
    (tmp_path / used).write_text("90000000\n")
    assert free_host_memory() == 0
    for text in ("max\n", "9223372036854771712\n"):  # without a limit
        (tmp_path / limit).write_text(text)
        assert free_host_memory() == pytest.approx(without, rel=0.2)


def test_without_proc_free_memory_is_not_known_and_the_peak_is_that_of_the_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(path: Path) -> dict[str, int]:
        raise FileNotFoundError(path)

    monkeypatch.setattr(memory, "_fields", missing)
    assert free_host_memory() == 0
    assert peak_host_memory() > 10 * MIB
    forget_peak()


def test_a_gpu_that_is_not_there_has_no_memory() -> None:
    assert gpu_memory(4096) == (0, 0)
