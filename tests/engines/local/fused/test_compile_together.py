"""Several processes that compile the same kernels share the work."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from threading import Thread
from time import sleep

import pytest
import torch
from filelock import FileLock
from tests.engines.local.fused.compile_checks import CPU, INPUTS, compiled, model
from triton.runtime.cache import get_cache_manager

from fedchoir.engines.local.fused import compile_ahead as module
from fedchoir.engines.local.fused.compile_ahead import Kernel, compile_ahead, missing_kernels

HOLDER = """
import sys, time, filelock
with filelock.FileLock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("finished", [True, False])
def test_a_kernel_that_another_process_compiles_is_waited_for(cache: Path, finished: bool) -> None:
    """It is not compiled twice, unless the other process is killed before it has finished."""
    kernels = missing_kernels([model()], INPUTS, CPU, torch.float32)
    mark = module._mark(kernels[0])
    mark.parent.mkdir()
    holder = [sys.executable, "-c", HOLDER, str(mark.with_suffix(".lock"))]
    with subprocess.Popen(holder, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        assert other.stdout.readline() == "held\n"

        def end() -> None:
            while compiled(cache) < len(kernels) - 1:
                sleep(0.05)
            sleep(0.5)
            if finished:
                pretend_compiled(kernels[0])
            other.kill()

        ending = Thread(target=end)
        ending.start()
        notes = compile_ahead([model()], INPUTS, CPU, torch.float32, processes=2)
        ending.join()
    assert notes == []
    assert compiled(cache) == len(kernels) - finished


def pretend_compiled(kernel: Kernel) -> None:
    """What is on disk after another process has compiled it, without the binary."""
    key = "0" * 64
    group = get_cache_manager(key)
    group.put_group(f"{kernel.name}.json", {f"{kernel.name}.json": group.put("{}", f"{kernel.name}.json")})
    module._mark(kernel).write_text(key)


def test_a_kernel_that_never_gets_finished_elsewhere_is_left_to_its_first_launch(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WAIT", 0.2)
    kernels = missing_kernels([model()], INPUTS, CPU, torch.float32)
    mark = module._mark(kernels[0])
    mark.parent.mkdir()
    with FileLock(mark.with_suffix(".lock")):
        (note,) = compile_ahead([model()], INPUTS, CPU, torch.float32, processes=2)
    assert f"({kernels[0].name}: another process did not compile it within 0.2 s)" in note
    assert compiled(cache) == len(kernels) - 1


@pytest.mark.parametrize("error", [NotImplementedError("no flock"), OSError(errno.ENOSYS, "no flock")])
def test_a_file_system_without_locks_leaves_kernels_to_their_first_launch(
    error: Exception, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first error is that of filelock before 3.25."""

    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(FileLock, "acquire", refuse)
    (note,) = compile_ahead([model()], INPUTS, CPU, torch.float32, processes=2)
    assert "no flock" in note
    assert compiled(cache) == 0
