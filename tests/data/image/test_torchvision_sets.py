"""torchvision's data sets on tiny files in the real layouts, and their download."""

from __future__ import annotations

import bz2
import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat
from torchvision import datasets

from fedchoir.data.image.datasets import SOURCES, load_domain
from fedchoir.data.image.decoding import Decoder
from fedchoir.data.image.loading import ImageLoader
from fedchoir.data.image.resize import Resize
from fedchoir.data.image.torchvision_sets import SETS, fetch
from fedchoir.utils.errors import UsageError

RNG = np.random.default_rng(0)


def idx_bytes(array: np.ndarray) -> bytes:
    """MNIST's file format: two zero bytes, type, number of axes, the axes, the data."""
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return head + array.astype(np.uint8).tobytes()


def write_mnist(root: Path, name: str = "MNIST") -> None:
    raw = root / name / "raw"
    raw.mkdir(parents=True)
    for part, count in (("train", 20), ("t10k", 10)):
        images = RNG.integers(0, 256, (count, 28, 28))
        (raw / f"{part}-images-idx3-ubyte").write_bytes(idx_bytes(images))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(idx_bytes(np.arange(count) % 10))


def write_usps(root: Path) -> None:
    for file, count in (("usps.bz2", 20), ("usps.t.bz2", 10)):
        rows = [
            " ".join([str(i % 10 + 1), *(f"{k + 1}:{v:.3f}" for k, v in enumerate(RNG.uniform(-1, 1, 256)))])
            for i in range(count)
        ]
        (root / file).write_bytes(bz2.compress("\n".join(rows).encode()))


def write_svhn(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {}
    for part, count in (("train", 20), ("test", 10)):
        path = root / f"{part}_32x32.mat"
        labels = (np.arange(count) % 10 + 1).reshape(-1, 1)  # SVHN writes 0 as 10
        savemat(path, {"X": RNG.integers(0, 256, (32, 32, 3, count), dtype=np.uint8), "y": labels})
        parts[part] = ["", path.name, hashlib.md5(path.read_bytes()).hexdigest()]
    monkeypatch.setattr(datasets.SVHN, "split_list", parts)


def write_cifar(root: Path, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = root / kind.base_folder
    folder.mkdir()
    key = "labels" if kind is datasets.CIFAR10 else "fine_labels"
    lists: dict[str, list] = {"train_list": [], "test_list": []}
    for listing, name, count in (("train_list", "train", 20), ("test_list", "test", 10)):
        content = {"data": RNG.integers(0, 256, (count, 3072), dtype=np.uint8), key: [i % 10 for i in range(count)]}
        (folder / name).write_bytes(pickle.dumps(content))
        lists[listing] = [[name, hashlib.md5((folder / name).read_bytes()).hexdigest()]]
    meta = {kind.meta["key"]: [f"class {i}" for i in range(10)]}
    (folder / "meta").write_bytes(pickle.dumps(meta))
    md5 = hashlib.md5((folder / "meta").read_bytes()).hexdigest()
    monkeypatch.setattr(kind, "meta", {**kind.meta, "filename": "meta", "md5": md5})
    for listing, value in lists.items():
        monkeypatch.setattr(kind, listing, value)


@pytest.mark.parametrize("name", sorted(SETS))
def test_torchvision_layouts(tmp_path, monkeypatch, name):
    if name in ("mnist", "fashion_mnist"):
        write_mnist(tmp_path, "MNIST" if name == "mnist" else "FashionMNIST")
    elif name == "usps":
        write_usps(tmp_path)
    elif name == "svhn":
        write_svhn(tmp_path, monkeypatch)
    else:
        write_cifar(tmp_path, datasets.CIFAR10 if name == "cifar10" else datasets.CIFAR100, monkeypatch)
    domain = load_domain(name, tmp_path)
    assert domain.train.inputs.shape == (20, 3, 32, 32)
    assert domain.test.inputs.shape == (10, 3, 32, 32)
    assert len(domain.classes) == 10
    assert sorted(domain.test.labels.tolist()) == list(range(10))
    assert domain.own_test
    assert domain.notes == (f"{name}: 20 training images found, {SOURCES[name].train_size} in the complete data set",)


def test_pixels_and_labels_of_mnist_and_svhn(tmp_path, monkeypatch):
    write_mnist(tmp_path)
    write_svhn(tmp_path, monkeypatch)
    mnist = load_domain("mnist", tmp_path, ImageLoader(Decoder(Resize.to(28))))
    stored = np.frombuffer((tmp_path / "MNIST/raw/train-images-idx3-ubyte").read_bytes()[16:], np.uint8)
    assert np.array_equal(mnist.train.inputs[:, 1].numpy(), stored.reshape(20, 28, 28))
    assert load_domain("svhn", tmp_path).train.labels[:10].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]


def test_damaged_torchvision_files(tmp_path):
    write_mnist(tmp_path)
    (tmp_path / "MNIST/raw/train-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03 short")
    with pytest.raises(UsageError, match="MNIST/raw: damaged or incomplete mnist"):
        load_domain("mnist", tmp_path)


def test_fetch_unknown_set(tmp_path):
    with pytest.raises(UsageError, match="'syn' cannot be fetched; these can: mnist, usps, svhn"):
        fetch("syn", tmp_path)


def test_fetch_opens_both_splits_with_download(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(datasets, "FashionMNIST", lambda root, **call: calls.append((root, call)))
    assert fetch("fashion-mnist", tmp_path / "new") == tmp_path / "new"
    assert calls == [(tmp_path / "new", {"train": train, "download": True}) for train in (True, False)]


@pytest.mark.parametrize("error", [OSError("Name or service not known"), RuntimeError("Error downloading a.gz")])
def test_fetch_without_a_network(tmp_path, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(datasets, "MNIST", fail)
    with pytest.raises(UsageError, match=f"data fetch mnist: download into .* failed .{error}.; is there a network"):
        fetch("mnist", tmp_path)
