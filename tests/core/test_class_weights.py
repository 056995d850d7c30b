"""Class weights against scikit-learn, in the loss, and where they are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from tests.conftest import draw_shapes
from tests.helpers import equal, states

from fedchoir import Experiment, run
from fedchoir.core.class_weights import balanced_weights
from fedchoir.engines.local.client_factory import new_client
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.prepare import prepare
from fedchoir.utils.errors import UsageError


def test_as_in_scikit_learn() -> None:
    labels = np.repeat([0, 1, 3], [50, 5, 12])
    wanted = compute_class_weight("balanced", classes=np.array([0, 1, 3]), y=labels)
    found = balanced_weights(torch.tensor([50, 5, 0, 12]))
    assert found[[0, 1, 3]].numpy() == pytest.approx(wanted)
    assert found[2] == 1


def client_of(experiment: Experiment) -> Any:
    method, scenario, _ = prepare(make_plan(experiment))
    return new_client(method, 0, scenario.clients[0], None, device=torch.device("cpu"), precision="fp32")


def test_the_loss_of_every_class_has_the_same_weight(small: Callable[..., Experiment]) -> None:
    client = client_of(small("solo", settings={"class_weights": "balanced"}))
    labels = client.private.labels
    z = torch.randn(len(labels), 4, generator=torch.Generator().manual_seed(0))
    losses = torch.nn.functional.cross_entropy(z, labels, reduction="none")
    by_class = torch.stack([losses[labels == c].mean() for c in labels.unique()])
    assert float(client.cross_entropy(z, labels)) == pytest.approx(float(by_class.mean()))


def test_without_the_option_there_are_no_weights(small: Callable[..., Experiment]) -> None:
    assert client_of(small("solo")).class_weights is None


@pytest.mark.parametrize(
    ("method", "settings", "why"),
    [
        ("byol", {"private_augment": "strong"}, "byol: its clients train without labels"),
        ("rhfl", {}, "rhfl: its symmetric cross-entropy has none; set use_sce to false"),
        ("solo", {"dp_noise": 1.0}, "not possible with dp_noise"),
    ],
)
def test_refusals(method: str, settings: dict[str, Any], why: str, small: Callable[..., Experiment]) -> None:
    experiment = small(method, settings={**settings, "class_weights": "balanced"})
    with pytest.raises(UsageError, match=why):
        prepare(make_plan(experiment))


@pytest.mark.parametrize("name", ["moon", "fedproc", "fml", "fedntd", "fedrs"])
def test_methods_train_with_the_weights(name: str, small: Callable[..., Experiment], tmp_path: Path) -> None:
    """A scenario in which one class is rare: weights change the trained models."""
    rng = np.random.default_rng(3)
    folder = tmp_path / "rare"
    folder.mkdir()
    for site in ("one", "two"):
        shapes, test = draw_shapes(rng, 48, (1, 1, 1), 20), draw_shapes(rng, 16, (1, 1, 1), 20)
        kept = (shapes["y"] != 0) | (np.arange(48) < 8)
        x, y = shapes["x"][kept], shapes["y"][kept]
        np.savez(folder / f"{site}.npz", train_x=x, train_y=y, test_x=test["x"], test_y=test["y"])
    found = []
    for choice in ("none", "balanced"):
        settings = {"class_weights": choice, "local_epochs": 1, **({"meme": "simple_cnn@4"} if name == "fml" else {})}
        models = ("simple_cnn@4",)
        experiment = small(
            name, scenario=str(folder), models=models, rounds=1, out=tmp_path / choice, settings=settings
        )
        run(experiment)
        found.append(states(experiment))
    plain, weighted = found
    assert any(not equal(state, weighted[name]) for name, state in plain.items())
