"""A tiny label-skew scenario: one data set dealt out to clients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import CLASSES, draw_shapes
from tests.federation_harness import FederationHarness

from fedchoir import Experiment


@pytest.fixture(scope="session")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with a tiny cifar10.npz: four classes have images, a fifth has a name alone."""
    root = tmp_path_factory.mktemp("skewed")
    rng = np.random.default_rng(7)
    train, test = draw_shapes(rng, 480, (1, 0.5, 0.1), 30), draw_shapes(rng, 80, (1, 0.5, 0.1), 30)
    arrays = {"train_x": train["x"], "train_y": train["y"], "test_x": test["x"], "test_y": test["y"]}
    np.savez(root / "cifar10.npz", **arrays, label_names=np.array(list("abcde")))
    return root


@pytest.fixture
def skew(skewed: Path, tmp_path: Path) -> Callable[..., Experiment]:
    def make(method: str, name: str = "run", rounds: int = 2, **settings: Any) -> Experiment:
        values = {"clients": 4, "local_epochs": 1, "image_size": 16, "local_batch": 16, "optimizer": "adam"}
        values |= {"local_lr": 0.01, "lr_schedule": "constant", **settings}
        return Experiment(
            method=method, scenario="cifar10", models=("simple_cnn@4",), rounds=rounds, device="cpu", data_root=skewed,
            out=tmp_path / name, settings=values,
        )  # fmt: skip

    return make


@pytest.fixture
def harness(small: Callable[..., Experiment]) -> Callable[..., FederationHarness]:
    """Makes a quick federation to play by hand: ``harness("fbcl", models=..., depth=4)``."""

    def make(
        method: str,
        models: tuple[str, ...] | None = None,
        rounds: int = 4,
        scenario: Path | None = None,
        **settings: Any,
    ) -> FederationHarness:
        changes: dict[str, Any] = {"rounds": rounds, "settings": {"local_epochs": 1, **settings}}
        if models:
            changes["models"] = models
        if scenario:
            changes["scenario"] = str(scenario)
        return FederationHarness(small(method, **changes))

    return make


@pytest.fixture(scope="session")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three clients with unequal class sets: 0 1 2, then 1 2, then 0 1 2. Nobody has class 3, but the tests do."""
    folder = tmp_path_factory.mktemp("uneven")
    rng = np.random.default_rng(8)
    for name, lacking in (("red", (3,)), ("green", (0, 3)), ("white", (3,))):
        train, test = draw_shapes(rng, 48, (1, 0.5, 0.5), 20), draw_shapes(rng, 8 * CLASSES, (1, 0.5, 0.5), 20)
        kept = ~np.isin(train["y"], lacking)
        arrays = {"train_x": train["x"][kept], "train_y": train["y"][kept], "test_x": test["x"], "test_y": test["y"]}
        np.savez(folder / f"{name}.npz", **arrays)
    return folder
