"""Every place that a data set may be in, on tiny files in the real layouts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from fedchoir.data.image.datasets import SOURCES, load_domain
from fedchoir.data.image.decoding import Decoder
from fedchoir.data.image.loading import ImageLoader
from fedchoir.data.image.resize import Resize
from fedchoir.data.image.torchvision_sets import SETS
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
    assert not set(domain.train.hashes()) & set(domain.test.hashes())
    assert torch.equal(domain.test.inputs, load_domain(name, tmp_path).test.inputs)


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
    assert load_domain("cifar10", tmp_path, ImageLoader(Decoder(Resize.to(20)))).test.inputs.shape[-2:] == (20, 20)
    assert load_domain("digits-lite/pen", None, ImageLoader(Decoder(Resize(16, 24)))).test.inputs.shape[-2:] == (16, 24)


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
    if name in SETS:
        assert f"`fedchoir data fetch {name.replace('_', '-')}`" in message


def test_unknown_set():
    with pytest.raises(UsageError, match="data set: 'imagenet' is not one of mnist"):
        load_domain("imagenet")


def test_a_lone_image_cannot_be_split(tmp_path):
    (tmp_path / "office31" / "amazon" / "mug").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "office31" / "amazon" / "mug" / "a.png")
    with pytest.raises(UsageError, match="amazon: 1 samples are too few to hold some out"):
        load_domain("office31/amazon", tmp_path)
