"""A site's data: labels in the federation's classes, the decoded cache, and what the server learns about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedchoir import methods
from fedchoir.deploy import site_data
from fedchoir.deploy.site_data import LocalSite
from fedchoir.utils.errors import UsageError

Params = methods.get("fedmd").Params


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes with four images each."""
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        for number in range(4):
            path = tmp_path / "images" / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(path)
    return tmp_path / "images"


def make(data: Path, tmp_path: Path, **changes: Any) -> LocalSite:
    return LocalSite("site", "mlp", data, tmp_path / "work", device="cpu", **changes)


def test_labels_are_indices_of_the_federations_classes(folder: Path, tmp_path: Path) -> None:
    site, settings = make(folder, tmp_path), Params(image_size=16)
    data = site.prepare(settings, ("bird", "dog", "cat"), None)
    assert set(data.train.labels.tolist()) | set(data.tests["own"].labels.tolist()) == {1, 2}
    assert data.public is None
    with pytest.raises(UsageError, match="site: class 'dog' is not among the federation's classes"):
        site.prepare(settings, ("bird", "cat"), None)


def test_training_images_that_are_in_the_test_set_are_left_out(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (8, 16, 16, 3), dtype=np.uint8)
    labels = np.arange(8) % 2
    path = tmp_path / "data.npz"
    np.savez(path, train_x=images[:6], train_y=labels[:6], test_x=images[4:], test_y=labels[4:])
    domain = make(path, tmp_path).domain(16)
    assert (len(domain.train), len(domain.test)) == (4, 4)


def test_a_folder_is_decoded_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = make(folder, tmp_path)
    first = site.domain(16)
    with monkeypatch.context() as patch:
        patch.setattr(site_data, "read_folder", lambda *_: pytest.fail("decoded again"))
        second = site.domain(16)
    assert torch.equal(first.train.images, second.train.images)
    assert first.classes == second.classes
    (folder / "dog" / "3.png").unlink()  # a change of the folder is noticed
    third = site.domain(16)
    assert len(third.train) + len(third.test) == 7
    assert len(list((tmp_path / "work" / "decoded").glob("*.safetensors"))) == 1


def test_missing_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no such folder or \.npz file"):
        make(tmp_path / "missing", tmp_path).domain(16)


def request(**public: Any) -> dict[str, Any]:
    wanted = {"name": "photos", "seed": 0, "size": 5, "image_size": 16, "normalisation": "imagenet", "strict": False}
    return {
        "method": "fedmd",
        "settings": Params(image_size=16).model_dump(mode="json"),
        "public": {**wanted, **public} if public else None,
    }


def test_the_server_learns_sizes_and_names_only(folder: Path, tmp_path: Path) -> None:
    info = make(folder, tmp_path).site_info(request())
    free, versions = info.pop("free"), info.pop("versions")
    assert free > 0
    assert "torch" in versions
    domain = make(folder, tmp_path).domain(16)
    assert info == {
        "name": "site", "model": "mlp", "train": len(domain.train), "test": len(domain.test),
        "classes": ["cat", "dog"], "public": None,
    }  # fmt: skip


def test_a_site_may_have_its_own_copy_of_the_public_set(folder: Path, public_shapes: Path, tmp_path: Path) -> None:
    params = Params(image_size=16)
    wanted = {"name": str(public_shapes), "normalisation": params.normalisation}
    by_name = make(folder, tmp_path).site_info(request(**wanted))["public"]
    copy = tmp_path / "copy.npz"
    copy.write_bytes(public_shapes.read_bytes())
    own = make(folder, tmp_path, public=str(copy)).site_info(request(**{**wanted, "name": "not here"}))["public"]
    assert own == by_name
    assert own["size"] == 5


def test_an_impossible_model_or_device_is_found_before_the_run(folder: Path, tmp_path: Path) -> None:
    site = LocalSite("site", "no-such-model", folder, tmp_path / "work", device="cpu")
    with pytest.raises(UsageError, match="no-such-model"):
        site.site_info(request())
    with pytest.raises(UsageError, match="toaster"):
        LocalSite("site", "mlp", folder, tmp_path / "work", device="toaster").site_info(request())
