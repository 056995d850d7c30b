"""A kernel cache and a target for tests of compiling without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from fedchoir.engines.local.fused import layers
from fedchoir.engines.local.fused.compile_worker import TargetOnly
from fedchoir.engines.local.fused.kernels import norm


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, a target in place of a GPU, and fused layers that also run on a CPU."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(layers, "INTERPRETED", True)
    monkeypatch.setattr(driver, "_active", TargetOnly("cuda", 90, 32))
    for kernel in vars(norm).values():
        if isinstance(kernel, JITFunction):
            kernel.device_caches.clear()  # what this process has loaded
    return tmp_path
