"""A tiny scenario in which clients have their classes in different numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.conftest import CLASSES, draw_shapes

COUNTS = {"red": (4, 12, 8, 0), "green": (0, 6, 10, 0), "white": (12, 0, 6, 0)}
"""Training images of each class. Nobody has class 3, but the tests do."""


def unequal_classes(folder: Path) -> Path:
    """One file per client."""
    rng = np.random.default_rng(9)
    folder.mkdir(exist_ok=True)
    for name, counts in COUNTS.items():
        train, test = draw_shapes(rng, 48, (1, 0.5, 0.5), 20), draw_shapes(rng, 4 * CLASSES, (1, 0.5, 0.5), 20)
        kept = np.concatenate([np.flatnonzero(train["y"] == k)[:n] for k, n in enumerate(counts)])
        arrays = {"train_x": train["x"][kept], "train_y": train["y"][kept], "test_x": test["x"], "test_y": test["y"]}
        np.savez(folder / f"{name}.npz", **arrays)
    return folder
