"""A run on more images than may be in memory: its memory does not grow with the number of images."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

import large_images

SIZE = 224


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_memory_does_not_grow_with_the_number_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundredth of the benchmark: 1,000 images, 150 MB decoded, with a hundredth of the limits."""
    for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"):  # what was freed leaves the process at once
        monkeypatch.setenv(name, "131072")
    peaks = {}
    for images in (200, 1000):
        options = argparse.Namespace(size=SIZE, model="logistic", divide=100, folder=tmp_path / str(images))
        large_images.make(options.folder / "images", images, SIZE)
        found = large_images.in_new_process(options)
        assert found["images"] == images
        peaks[images] = found["peak"]
        rows = list((options.folder / "cache").glob("*/rows.bin"))
        assert sum(path.stat().st_size for path in rows) == images * 3 * SIZE**2
    assert peaks[1000] - peaks[200] < 0.1 * 800 * 3 * SIZE**2
