"""Fixtures of all tests. Tests use one torch thread, so that two workers share two cores."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedchoir import Experiment, Result, methods, run

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # for processes that tests start: sums depend on the number of threads

CLASSES = 4
MIXED = ("simple_cnn@4", "resnet10@4", "mlp")


def draw_shapes(rng: np.random.Generator, count: int, tint: tuple[float, float, float], noise: float) -> dict[str, Any]:
    """Images 16×16 whose class is the quadrant that is bright, in one domain's tint and noise."""
    labels = np.arange(count) % CLASSES
    images = rng.normal(60, noise, (count, 16, 16, 3))
    for i, label in enumerate(labels):
        row, column = divmod(int(label), 2)
        images[i, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] += 120 * np.array(tint)
    return {"x": images.clip(0, 255).astype(np.uint8), "y": labels.astype(np.int64)}


@pytest.fixture(scope="session")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's own folder: three clients, four classes, 16×16 images, one .npz each."""
    folder = tmp_path_factory.mktemp("shapes")
    rng = np.random.default_rng(5)
    for name, tint, noise in (("red", (1, 0.1, 0.1), 20), ("green", (0.1, 1, 0.1), 30), ("white", (1, 1, 1), 40)):
        train, test = draw_shapes(rng, 48, tint, noise), draw_shapes(rng, 32, tint, noise)
        arrays = {"train_x": train["x"], "train_y": train["y"], "test_x": test["x"], "test_y": test["y"]}
        np.savez(folder / f"{name}.npz", **arrays)
    return folder


@pytest.fixture(scope="session")
def public_shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A public set of 40 unlabeled images."""
    path = tmp_path_factory.mktemp("public") / "public.npz"
    np.savez(path, x=np.random.default_rng(6).integers(0, 256, (40, 16, 16, 3), dtype=np.uint8))
    return path


SMALL = {"image_size": 16, "local_epochs": 2, "local_batch": 16, "public_size": 40, "public_batch": 16}
FOR_METHOD: dict[str, dict[str, Any]] = {  # methods that need other options to be quick
    "fccl": {"pretrain_epochs": 2},
    "fml": {"meme": "simple_cnn@4"},
    "fbcl": {"depth": 8},
    **{name: {"local_epochs": 1} for name in ("fedexg", "pgct", "fedct")},  # they train twice a round
    "feddc": {"optimizer": "sgd", "local_lr": 0.05},
}

TINY_SSL = {
    "private_augment": "strong", "optimizer": "sgd", "local_lr": 0.032, "local_batch": 24, "local_epochs": 1, "dim": 8,
    "hidden": 16, "t_warm": 1, "knn": 5, "evaluate_every": 1, "probe_epochs": 30, "probe_lr": 0.03,
    "probe_data": "own",  # as at real sites
}  # fmt: skip
SELF_SUPERVISED = ("byol", "fedbyol", "fedu", "fedema", "fedfoa", "fedmd-ssl", "ensemble-ssl")
FOR_METHOD |= dict.fromkeys(SELF_SUPERVISED, TINY_SSL)
FOR_METHOD |= {"scaffold": {"optimizer": "sgd", "local_lr": 0.05, "momentum": 0.9}}
FOR_METHOD |= {"fedkd": {"shared_model": "simple_cnn@4"}, "fedmrl": {"shared_model": "simple_cnn@4", "shared_dim": 16}}
FOR_METHOD |= {"fedgen": {"generator_steps": 10, "hidden_dim": 32, "generator_lr": 0.005}}
TINY_CONDENSATION = {"condense_steps": 6, "condense_lr": 0.1, "network_width": 8, "per_class": 2}
FOR_METHOD |= {"choir": TINY_CONDENSATION, "feddm": {**TINY_CONDENSATION, "server_epochs": 20}}
ON_CONDENSED = {"public": "condensed", **TINY_CONDENSATION, "per_class": 4}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "choir-v1 with a shared model": ("choir-v1", {"shared_model": "simple_cnn@4"}),
    "choir with all options": (
        "choir",
        {"shared_model": "simple_cnn@4", "formation": 2, "soft_labels": True, "embedders": "both", "refresh": 2},
    ),
    **{f"{name} on condensed samples": (name, ON_CONDENSED) for name in ("fedmd", "fccl+", "feddf", "fbcl")},
    "fedct with several models at a client": ("fedct", {"assignment": "argmin"}),
    "heterofl with three widths": ("heterofl", {"models": ("resnet10@4", "resnet10@8", "resnet10@6")}),
    "fedrolex with three widths": ("fedrolex", {"models": ("resnet10@4", "resnet10@8", "resnet10@6")}),
}
"""Methods that store or send something of another kind with an option, other models or another public set: method and
options."""


@pytest.fixture
def small(shapes: Path, public_shapes: Path, tmp_path: Path) -> Callable[..., Experiment]:
    """A function that makes an experiment of about a second: method, name of its folder, changes."""

    def make(method: str, name: str = "run", **changes: Any) -> Experiment:
        method, options = VARIANTS.get(method, (method, {}))
        cls = methods.get(method)
        options = dict(options)
        public = options.pop("public", str(public_shapes))
        models = options.pop("models", MIXED if cls.heterogeneous else ("resnet10@4",))
        settings = {**SMALL, **options, **FOR_METHOD.get(method, {}), **changes.pop("settings", {})}
        values: dict[str, Any] = {
            "method": method,
            "scenario": str(shapes),
            "public": public,
            "models": models,
            "rounds": 3,
            "device": "cpu",
            "out": tmp_path / name,
        }
        return Experiment(**{**values, **changes}, settings=settings)

    return make


@pytest.fixture
def play(small: Callable[..., Experiment]) -> Callable[..., Result]:
    """A function that runs such an experiment."""
    return lambda method, name="run", **changes: run(small(method, name, **changes))
