"""Every method on every kind of sample: it learns, resumes exactly, or refuses in one line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.conftest import FOR_METHOD
from tests.helpers import Stop, StopAfter, assert_same, events, run_folder
from torch.utils.data import TensorDataset

from fedchoir import Experiment, methods, run
from fedchoir.utils.errors import UsageError

NAMES = list(methods.registry())
CLASSES = 3
CHANCE = 100 / CLASSES


@dataclass(frozen=True)
class Kind:
    """A tiny scenario of one modality, its models (all different), and the options that it needs."""

    scenario: str
    public: str
    models: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    without_map: bool = False


def make_tables(folder: Path) -> Kind:
    """Three clients: the class is the largest of three measurements. One has other units, one lacks a column."""
    rng = np.random.default_rng(0)
    for name, unit in (("a", 1.0), ("b", 50.0), ("c", 0.1)):
        cells = rng.normal(size=(100, CLASSES))
        columns: dict[str, Any] = {f"m{i}": unit * cells[:, i] for i in range(CLASSES)}
        columns |= {
            "ward": rng.choice(["north", "south"], 100),
            "sick": [f"c{label}" for label in cells.argmax(axis=1)],
        }
        frame = pd.DataFrame(columns).mask(rng.random((100, CLASSES + 2)) < [0.05] * CLASSES + [0.05, 0.0])
        frame.drop(columns="ward" if name == "c" else []).to_csv(folder / f"{name}.csv", index=False)
    return Kind(str(folder), "column-ranges", ("mlp@16", "res_mlp@8", "ft_transformer@8"), without_map=True)


def make_series(folder: Path) -> Kind:
    """Three clients with two channels: the class is the frequency; units differ between clients."""
    rng = np.random.default_rng(0)

    def draw(count: int, unit: float) -> tuple[np.ndarray, np.ndarray]:
        y = np.arange(count) % CLASSES
        time = np.arange(24)
        phase = rng.uniform(0, 2 * np.pi, (count, 2, 1))
        waves = np.sin(2 * np.pi * (1 + 3 * y[:, None, None]) * time / 24 + phase)
        return unit * (waves + 0.3 * rng.normal(size=waves.shape)), y

    for name, unit in (("a", 1.0), ("b", 50.0), ("c", 0.1)):
        (train_x, train_y), (test_x, test_y) = draw(60, unit), draw(30, unit)
        np.savez(folder / f"{name}.npz", train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y)
    return Kind(str(folder), "noise", ("cnn1d@8", "gru@8", "transformer@8"))


def make_text(folder: Path) -> Kind:
    """Three clients whose texts name a class in their own words, in filler words that all share."""
    rng = np.random.default_rng(0)
    filler = [f"w{i}" for i in range(20)]

    def draw(client: int, label: int) -> str:
        signal = [f"class{label}", f"client{client}class{label}"]
        return " ".join(rng.permutation([*rng.choice(signal, 4), *rng.choice(filler, 6)]))

    for client, name in enumerate(("a", "b", "c")):
        rows = [{"text": draw(client, i % CLASSES), "label": f"c{i % CLASSES}"} for i in range(90)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    public = folder.parent / "public.txt"
    public.write_text("\n".join(draw(i % 3, i % CLASSES) for i in range(40)))
    models = ("bag_of_embeddings@8", "textcnn@8", "bigru@8")
    return Kind(str(folder), str(public), models, {"vocabulary": 128, "max_length": 12, "local_lr": 0.02})


def make_tensors(folder: Path) -> Kind:
    """Datasets of a user's own function: samples of two tensors, a vector and a matrix."""
    (folder / "mine.py").write_text(
        f"from {__name__} import TwoTensors\n\n\n"
        "def clients():\n    return {name: TwoTensors(60, seed) for seed, name in enumerate('abc')}\n\n\n"
        "def public():\n    return TwoTensors(40, 9)\n"
    )
    place = f"{folder}/mine.py"
    return Kind(f"{place}:clients", f"{place}:public", ("mlp@16", "mlp@24", "logistic"), without_map=True)


class TwoTensors(TensorDataset):
    """The class is the largest of the first three numbers."""

    classes = ("p", "q", "r")

    def __init__(self, count: int, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        vector, matrix = torch.randn(count, 3, generator=draw), torch.randn(count, 2, 2, generator=draw)
        super().__init__(vector, matrix, vector.argmax(dim=1))

    def __getitem__(self, index: int) -> Any:
        vector, matrix, label = super().__getitem__(index)
        return (3 * vector, matrix), int(label)


KINDS: dict[str, Callable[[Path], Kind]] = {
    "table": make_tables, "series": make_series, "text": make_text, "tensor": make_tensors,
}  # fmt: skip
SMALL = {"local_epochs": 2, "local_batch": 16, "public_size": 40, "public_batch": 20, "lr_schedule": "constant"}
NEED_A_MAP = {"fbcl"}
CONDENSING = {name: {"condense_steps": 40, "network_width": 16, "per_class": 5} for name in ("choir", "feddm")}


@pytest.fixture(scope="session", params=list(KINDS))
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kind:
    folder = tmp_path_factory.mktemp(request.param) / "clients"
    folder.mkdir()
    return KINDS[request.param](folder)


def experiment(kind: Kind, method: str, out: Path, **changes: Any) -> Experiment:
    special = {key: value for key, value in FOR_METHOD.get(method, {}).items() if key not in ("meme", "shared_model")}
    settings = {
        "local_lr": 0.01,
        **SMALL,
        **kind.settings,
        **special,
        **CONDENSING.get(method, {}),
        **changes.pop("settings", {}),
    }
    models = kind.models if methods.get(method).heterogeneous else kind.models[:1]
    values: dict[str, Any] = {"rounds": 2, "models": models, "public": kind.public, **changes}
    return Experiment(method=method, scenario=kind.scenario, out=out, device="cpu", settings=settings, **values)


@pytest.mark.parametrize("name", NAMES)
def test_a_method_learns_or_says_why_not(name: str, kind: Kind, tmp_path: Path) -> None:
    planned = experiment(kind, name, tmp_path / "run")
    if kind.without_map and name in NEED_A_MAP:
        with pytest.raises(UsageError, match="feature map"):
            run(planned)
        assert not (tmp_path / "run").exists()
        return
    result = run(planned)
    assert result.intra_avg > CHANCE + 10
    for event in events(planned):
        assert event["left_out"] == []
        assert all(math.isfinite(value) for client in event["losses"].values() for value in client.values())


@pytest.mark.parametrize("name", ["fccl+", "fedavg", "fml", "choir"])
def test_resume_is_exact(name: str, kind: Kind, tmp_path: Path) -> None:
    straight, stopped = (experiment(kind, name, tmp_path / folder) for folder in ("straight", "stopped"))
    run(straight)
    with pytest.raises(Stop):
        run(stopped, observers=[StopAfter(0)])
    run(stopped, resume=True)
    assert_same(straight, stopped)


def test_models_of_images_are_refused(kind: Kind, tmp_path: Path) -> None:
    planned = experiment(kind, "solo", tmp_path / "run", models=("resnet10",))
    with pytest.raises(UsageError, match=r"model 'resnet10' is not for \w+ samples; these are: "):
        run(planned)
    assert not run_folder(planned).exists()


def test_augmentations_of_images_are_refused(kind: Kind, tmp_path: Path) -> None:
    planned = experiment(kind, "solo", tmp_path / "run", settings={"private_augment": "affine"})
    with pytest.raises(UsageError, match=r"private_augment = 'affine' is not possible for \w+ samples"):
        run(planned)


def test_recoloring_is_for_images(kind: Kind, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"recolor = 'exchanged' is for images, not for \w+ samples"):
        run(experiment(kind, "choir-v1", tmp_path / "run", settings={"recolor": "exchanged"}))
