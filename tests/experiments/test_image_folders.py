"""Runs on folders of images: the cache changes no number, and images need not be square."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.helpers import assert_same

from fedchoir import Experiment, run
from fedchoir.data.image import loading
from fedchoir.data.mapped import MappedTensor
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.prepare import prepare
from fedchoir.experiments.run import Observer
from fedchoir.utils.errors import UsageError

SETTINGS = {"image_size": [16, 24], "local_epochs": 1, "local_batch": 8, "public_size": 16, "public_batch": 8}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two clients with two classes, and public images; 30×40 pixels."""
    rng = np.random.default_rng(0)
    for place, count in (("clients/a/x", 15), ("clients/a/y", 15), ("clients/b/x", 15), ("clients/b/y", 15), ("p", 16)):
        (tmp_path / place).mkdir(parents=True)
        for n in range(count):
            Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)).save(tmp_path / place / f"{n:02}.png")
    return tmp_path


def experiment(folder: Path, name: str, method: str = "fccl+", **settings: object) -> Experiment:
    return Experiment(
        method=method, scenario=str(folder / "clients"), public=str(folder / "p"), models=("simple_cnn@4", "mlp"),
        rounds=2, device="cpu", out=folder / name, cache=folder / "cache", settings={**SETTINGS, **settings},
    )  # fmt: skip


def test_images_in_the_cache_give_the_same_numbers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = experiment(folder, "memory", private_augment="strong")
    run(memory)
    monkeypatch.setattr(loading, "IN_MEMORY", 0)
    mapped = experiment(folder, "mapped", private_augment="strong")
    _, scenario, public = prepare(make_plan(mapped))
    assert public is not None
    for samples in (*(client.train for client in scenario.clients), *scenario.tests.values(), public.samples):
        assert isinstance(samples.inputs, MappedTensor)
    run(mapped)
    assert_same(memory, mapped)


@pytest.mark.parametrize(
    ("method", "settings"), [("fbcl", {"depth": 4}), ("choir", {"private_augment": "affine-recolor"})]
)
def test_images_need_not_be_square(folder: Path, method: str, settings: dict[str, object]) -> None:
    result = run(experiment(folder, "run", method, aspect="pad", **settings))
    assert result.settings["image_size"] == [16, 24]
    assert 0 <= result.intra_avg <= 100


class Seen(Observer):
    def __init__(self) -> None:
        self.names: list[str] = []
        self.has_ended = False

    def loading(self, done: int, total: int, name: str) -> None:
        if done == total:
            self.names.append(name)

    def ended(self) -> None:
        self.has_ended = True


def test_observers_see_what_is_decoded_and_a_damaged_file_ends_the_run(folder: Path) -> None:
    seen = Seen()
    run(experiment(folder, "one").model_copy(update={"rounds": 1}), observers=[seen])
    assert seen.names == ["a", "b", "p"]
    (folder / "clients" / "b" / "y" / "14.png").write_bytes(b"junk")
    seen = Seen()
    with pytest.raises(UsageError, match=r"clients/b/y/14\.png: not a readable image"):
        run(experiment(folder, "two"), observers=[seen])
    assert seen.has_ended
    assert not (folder / "two").exists()
