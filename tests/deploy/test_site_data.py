"""A site's data: labels in the federation's classes, the decoded cache, and what the server learns about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedchoir import methods
from fedchoir.data.image.decoding import Decoder
from fedchoir.data.tabular import heart
from fedchoir.deploy.config import FederationFile
from fedchoir.deploy.site_data import LocalSite
from fedchoir.engines.headers import MessageError
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
    domain = make(path, tmp_path).domain(Params(image_size=16))
    assert (len(domain.train), len(domain.test)) == (4, 4)


def test_a_folder_is_decoded_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, settings = make(folder, tmp_path), Params(image_size=16)
    first = site.domain(settings)
    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "__call__", lambda *_: pytest.fail("decoded again"))
        second = site.domain(settings)
    assert torch.equal(first.train.inputs, second.train.inputs)
    assert first.classes == second.classes
    (folder / "dog" / "3.png").unlink()  # a change of the folder is noticed
    third = site.domain(settings)
    assert len(third.train) + len(third.test) == 7
    assert len(list((tmp_path / "work" / "decoded").iterdir())) == 1


def test_the_server_does_not_choose_where_images_are_stored(folder: Path, tmp_path: Path) -> None:
    make(folder, tmp_path).site_info(Params(image_size=16, cache=tmp_path / "elsewhere"), None)
    assert not (tmp_path / "elsewhere").exists()
    assert (tmp_path / "work" / "decoded").is_dir()


def test_a_csv_of_texts_is_read_as_text_where_the_federation_names_its_column(tmp_path: Path) -> None:
    path = tmp_path / "notes.csv"
    path.write_text("body,age,label\n" + "".join(f"w{i},{i},{i % 2}\n" for i in range(20)))
    assert make(path, tmp_path).domain(Params(text_column="body")).train.modality == "text"
    assert make(path, tmp_path).domain(Params()).train.modality == "table"


def test_missing_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such folder or file"):
        make(tmp_path / "missing", tmp_path).domain(Params(image_size=16))


SETTINGS = Params(image_size=16)


def wanted(**public: Any) -> dict[str, Any]:
    """A message's description of the public set."""
    return {
        "name": "photos", "seed": 0, "size": 5, "image_size": 16, "normalisation": "correct", "strict": False, **public
    }  # fmt: skip


def test_the_server_learns_sizes_and_names_only(folder: Path, tmp_path: Path) -> None:
    info = make(folder, tmp_path).site_info(SETTINGS, None)
    free, versions = info.pop("free"), info.pop("versions")
    assert free > 0
    assert "torch" in versions
    domain = make(folder, tmp_path).domain(Params(image_size=16))
    assert info == {
        "name": "site", "model": "mlp", "train": len(domain.train), "test": len(domain.test),
        "classes": ["cat", "dog"], "public": None,
        "inputs": {"modality": "image", "shape": (3, 16, 16), "vocabulary": 0, "tensors": ()},
    }  # fmt: skip


def test_a_site_may_have_its_own_copy_of_the_public_set(folder: Path, public_shapes: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.npz"
    copy.write_bytes(public_shapes.read_bytes())
    found = [
        make(folder, tmp_path, public=str(path)).site_info(SETTINGS, wanted(name="not here"))["public"]
        for path in (public_shapes, copy)
    ]
    assert found[0] == found[1]
    assert found[0]["size"] == 5


def test_a_message_names_no_file_of_the_site(folder: Path, public_shapes: Path, tmp_path: Path) -> None:
    with pytest.raises(MessageError, match="this site's operator names its copy with --public"):
        make(folder, tmp_path).site_info(SETTINGS, wanted(name=str(public_shapes)))
    assert make(folder, tmp_path).site_info(SETTINGS, wanted())["public"]["size"] == 5


def test_an_impossible_model_or_device_is_found_before_the_run(folder: Path, tmp_path: Path) -> None:
    site = LocalSite("site", "no-such-model", folder, tmp_path / "work", device="cpu")
    with pytest.raises(UsageError, match="no-such-model"):
        site.site_info(SETTINGS, None)
    with pytest.raises(UsageError, match="toaster"):
        LocalSite("site", "mlp", folder, tmp_path / "work", device="toaster").site_info(SETTINGS, None)


def test_a_site_with_rows_of_one_class_has_the_agreed_classes(tmp_path: Path) -> None:
    """All Swiss patients to train on have the disease, and one to test on has not."""
    train, test = heart.hospital("switzerland")
    train.to_csv(tmp_path / "patients.csv", index=False)
    test.to_csv(tmp_path / "patients.test.csv", index=False)
    site, agreed = make(tmp_path / "patients.csv", tmp_path), {"target": heart.TARGET, "columns": heart.COLUMNS}
    with pytest.raises(UsageError, match="target: disease has 1 different values"):
        site.site_info(Params(**agreed), None)
    sites = [{"name": name, "key": f"{name}.pub"} for name in ("site", "other")]
    file = FederationFile(
        method="fedmd", public="column-ranges", classes=("present", "absent"), settings=agreed, sites=sites
    )
    settings = file.plan().params
    assert site.site_info(settings, None)["classes"] == ["present", "absent"]
    data = site.prepare(settings, ("present", "absent"), None)
    assert set(data.train.labels.tolist()) == {0}
    assert data.tests["own"].labels.bincount().tolist() == [15, 1]
