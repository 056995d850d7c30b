"""Every place that a data set may lie in, on tiny files in the real layouts."""

from __future__ import annotations

import bz2
import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from torchvision import datasets

from fedchoir.data.image.datasets import SOURCES, load_domain
from fedchoir.data.image.image_set import image_hashes
from fedchoir.data.image.torchvision_sets import OPENERS, fetch
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


@pytest.mark.parametrize("name", sorted(OPENERS))
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
    assert domain.train.images.shape == (20, 3, 32, 32)
    assert domain.test.images.shape == (10, 3, 32, 32)
    assert len(domain.classes) == 10
    assert sorted(domain.test.labels.tolist()) == list(range(10))
    assert domain.own_test
    assert domain.notes == (f"{name}: 20 training images here, {SOURCES[name].train_size} in the complete set",)


def test_pixels_and_labels_of_mnist_and_svhn(tmp_path, monkeypatch):
    write_mnist(tmp_path)
    write_svhn(tmp_path, monkeypatch)
    mnist = load_domain("mnist", tmp_path, image_size=28)
    stored = np.frombuffer((tmp_path / "MNIST/raw/train-images-idx3-ubyte").read_bytes()[16:], np.uint8)
    assert np.array_equal(mnist.train.images[:, 1].numpy(), stored.reshape(20, 28, 28))
    assert load_domain("svhn", tmp_path).train.labels[:10].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]


def test_damaged_torchvision_files(tmp_path):
    write_mnist(tmp_path)
    (tmp_path / "MNIST/raw/train-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03 short")
    with pytest.raises(UsageError, match="MNIST/raw: damaged or incomplete mnist"):
        load_domain("mnist", tmp_path)


def test_npz_comes_first(tmp_path, write_npz):
    write_mnist(tmp_path)
    write_npz(tmp_path / "mnist.npz", train=33, shape=(28, 28))
    assert len(load_domain("mnist", tmp_path).train) == 33


def test_data_root_from_the_environment(tmp_path, write_npz, monkeypatch):
    write_npz(tmp_path / "usps.npz", shape=(16, 16))
    monkeypatch.setenv("FEDCHOIR_DATA", str(tmp_path))
    assert len(load_domain("usps").train) == 60


def test_synthetic_digits_as_npz_folder_and_matlab(tmp_path, write_npz, write_tree):
    digits = list("0123456789")
    write_npz(tmp_path / "npz" / "syn.npz")
    assert "re-creation" in load_domain("syn", tmp_path / "npz").notes[0]
    write_tree(tmp_path / "tree" / "syn" / "imgs_train", digits, per_class=2)
    write_tree(tmp_path / "tree" / "syn" / "imgs_valid", digits, per_class=1)
    tree = load_domain("syn", tmp_path / "tree")
    assert (len(tree.train), len(tree.test), tree.notes) == (20, 10, ())
    (tmp_path / "mat").mkdir()
    for part, count in (("train", 20), ("test", 10)):
        content = {"X": np.zeros((32, 32, 3, count), np.uint8), "y": np.arange(count).reshape(-1, 1) % 10}
        savemat(tmp_path / "mat" / f"synth_{part}_32x32.mat", content)
    assert load_domain("syn", tmp_path / "mat").test.labels.tolist() == list(range(10))
    (tmp_path / "mat" / "synth_test_32x32.mat").write_bytes(b"no")
    with pytest.raises(UsageError, match=r"synth_test_32x32\.mat: not a readable MATLAB file"):
        load_domain("syn", tmp_path / "mat")


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("office-caltech/amazon", "office_caltech_10/amazon"),
        ("office-caltech/caltech", "Office-Caltech-10/caltech10"),
        ("office31/dslr", "office31/dslr/images"),
        ("office31/webcam", "domain_adaptation_images/webcam/images"),
        ("office-home/Art", "OfficeHome/Art"),
        ("office-home/RealWorld", "OfficeHomeDataset_10072016/Real World"),
        ("vireofood172", "VireoFood172"),
    ],
)
def test_folders_without_test_part_are_split_always_alike(tmp_path, write_tree, name, folder):
    write_tree(tmp_path / folder, ["bike", "mug", "pen"], per_class=10)
    domain = load_domain(name, tmp_path)
    assert (len(domain.train), len(domain.test)) == (24, 6)
    assert not domain.own_test
    assert domain.classes == ("bike", "mug", "pen")
    assert not set(image_hashes(domain.train.images)) & set(image_hashes(domain.test.images))
    assert torch.equal(domain.test.images, load_domain(name, tmp_path).test.images)


def test_office_npz_counts_as_held_out(tmp_path, write_npz):
    write_npz(tmp_path / "office_caltech_caltech10.npz")
    assert not load_domain("office-caltech/caltech", tmp_path).own_test


def test_food_lists(tmp_path, write_tree):
    folder = tmp_path / "vireofood172"
    write_tree(folder / "ready_chinese_food", ["1", "2"], per_class=4, suffix="jpg")
    (folder / "SplitAndIngreLabel").mkdir()
    (folder / "SplitAndIngreLabel" / "TR.txt").write_text("/1/000.jpg\n/2/001.jpg\n/2/002.jpg\n")
    with pytest.raises(UsageError, match=r"TE\.txt: no such file"):
        load_domain("vireofood172", tmp_path)
    (folder / "SplitAndIngreLabel" / "TE.txt").write_text("/1/003.jpg\n")
    domain = load_domain("vireofood172", tmp_path)
    assert (domain.train.labels.tolist(), domain.test.labels.tolist()) == ([0, 1, 1], [0])


def test_image_size(tmp_path, write_npz):
    write_npz(tmp_path / "cifar10.npz", shape=(32, 32, 3))
    assert load_domain("cifar10", tmp_path, image_size=20).test.images.shape[-2:] == (20, 20)
    assert load_domain("digits-lite/pen", image_size=16).test.images.shape[-2:] == (16, 16)


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_missing_sets_say_what_where_and_how(tmp_path, name):
    with pytest.raises(UsageError) as caught:
        load_domain(name, tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{name}: no ")
    assert ".npz" in message
    assert str(tmp_path) in message
    assert "get it: " in message
    if name in OPENERS:
        assert f"`fedchoir data fetch {name.replace('_', '-')}`" in message


def test_unknown_set():
    with pytest.raises(UsageError, match="data set: 'imagenet' is not one of mnist"):
        load_domain("imagenet")


def test_fetch_unknown_set(tmp_path):
    with pytest.raises(UsageError, match="'syn' cannot be fetched; these can: mnist, usps, svhn"):
        fetch("syn", tmp_path)


def test_fetch_opens_both_parts_with_download(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setitem(OPENERS, "fashion_mnist", lambda *call: calls.append(call))
    assert fetch("fashion-mnist", tmp_path / "new") == tmp_path / "new"
    assert calls == [(tmp_path / "new", True, True), (tmp_path / "new", False, True)]


@pytest.mark.parametrize("error", [OSError("Name or service not known"), RuntimeError("Error downloading a.gz")])
def test_fetch_without_a_network(tmp_path, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setitem(OPENERS, "mnist", fail)
    with pytest.raises(UsageError, match=f"data fetch mnist: download into .* failed .{error}.; is there a network"):
        fetch("mnist", tmp_path)


def test_a_lone_image_cannot_be_split(tmp_path):
    (tmp_path / "office31" / "amazon" / "mug").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "office31" / "amazon" / "mug" / "a.png")
    with pytest.raises(UsageError, match="amazon: 1 images are too few to hold some out"):
        load_domain("office31/amazon", tmp_path)
