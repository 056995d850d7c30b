"""Tiny data sets in the layouts of the real ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedchoir.data.scenario import Scenario

WriteTree = Callable[..., list[Path]]
WriteNpz = Callable[..., Path]


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory):
    """Embedded sets are built into a folder of the test run, and no data root is taken from outside."""
    patch = pytest.MonkeyPatch()
    patch.setenv("FEDCHOIR_CACHE", str(tmp_path_factory.mktemp("cache")))
    patch.setenv("FEDCHOIR_DATA", str(tmp_path_factory.mktemp("no-data")))
    yield
    patch.undo()


@pytest.fixture
def write_tree() -> WriteTree:
    """Write ``<folder>/<class>/<i>.png`` with random pixels."""

    def write(
        folder: Path, classes: Sequence[str], per_class: int = 10, side: int = 12, seed: int = 0, suffix: str = "png"
    ) -> list[Path]:
        rng = np.random.default_rng([seed, len(str(folder.name)), *folder.name.encode()])
        paths = []
        for name in classes:
            (folder / name).mkdir(parents=True, exist_ok=True)
            for i in range(per_class):
                path = folder / name / f"{i:03}.{suffix}"
                Image.fromarray(rng.integers(0, 256, (side, side + 2, 3), dtype=np.uint8)).save(path)
                paths.append(path)
        return paths

    return write


@pytest.fixture
def write_npz() -> WriteNpz:
    """Write train_x, train_y, test_x, test_y as the real files have them."""

    def write(
        path: Path, train: int = 60, test: int = 30, classes: int = 10, shape: Sequence[int] = (8, 8, 3), **more
    ) -> Path:
        rng = np.random.default_rng([*path.name.encode()])
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays = {
            "train_x": rng.integers(0, 256, (train, *shape), dtype=np.uint8),
            "train_y": np.arange(train, dtype=np.int64) % classes,
            "test_x": rng.integers(0, 256, (test, *shape), dtype=np.uint8),
            "test_y": np.arange(test, dtype=np.int64) % classes,
        }
        np.savez(path, **{**arrays, **more})
        return path

    return write


@pytest.fixture
def assert_disjoint() -> Callable[[Scenario], None]:
    """Check that no image is in two clients, nor in a client and a test set."""

    def check(scenario: Scenario) -> None:
        tested = {h for test in scenario.tests.values() for h in test.hashes()}
        trained = [h for client in scenario.clients for h in client.train.hashes()]
        assert len(trained) == len(set(trained))
        assert not tested & set(trained)

    return check
