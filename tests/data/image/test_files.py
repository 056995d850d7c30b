"""Reading image sets from .npz files and folders; errors name the file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedchoir.data.image.decoding import Decoder
from fedchoir.data.image.files import (
    data_root,
    find_folder,
    find_npz,
    images_below,
    read_folder,
    read_npz,
    read_public_npz,
)
from fedchoir.data.image.loading import ImageLoader
from fedchoir.data.image.resize import Resize
from fedchoir.utils.errors import UsageError

IMAGES = np.zeros((3, 8, 8), np.uint8)
LABELS = np.zeros(3, np.int64)


def loader(side: int) -> ImageLoader:
    return ImageLoader(Decoder(Resize.to(side)))


def one_line(caught) -> str:
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_data_root_order(monkeypatch):
    monkeypatch.setenv("FEDCHOIR_DATA", "/from/env")
    assert data_root(Path("/given")) == Path("/given")
    assert data_root(None) == Path("/from/env")
    monkeypatch.delenv("FEDCHOIR_DATA")
    assert data_root(None) == Path.home() / ".cache" / "fedchoir"


def test_lenient_names(tmp_path):
    (tmp_path / "Office-Caltech_10" / "Real World").mkdir(parents=True)
    (tmp_path / "Tiny-ImageNet.npz").touch()
    assert find_folder(tmp_path, "office_caltech_10/RealWorld") == tmp_path / "Office-Caltech_10" / "Real World"
    assert find_folder(tmp_path, "office_caltech_10/art") is None
    assert find_folder(tmp_path / "absent", "a") is None
    assert find_npz(tmp_path, "tiny_imagenet") == tmp_path / "Tiny-ImageNet.npz"
    assert find_npz(tmp_path / "absent", "a") is None


def test_npz_with_both_splits(tmp_path, write_npz):
    raw = read_npz(write_npz(tmp_path / "a.npz", shape=(16, 16)), Resize.to(32))
    assert raw.train.inputs.shape == (60, 3, 32, 32)
    assert raw.test is not None
    assert len(raw.test) == 30
    assert raw.classes == tuple("0123456789")


def test_npz_label_names_keep_their_order(tmp_path, write_npz):
    names = np.array(["zebra", "ant", "cow"])
    raw = read_npz(write_npz(tmp_path / "a.npz", classes=3, label_names=names), Resize.to(8))
    assert raw.classes == ("zebra", "ant", "cow")
    assert raw.train.labels[:4].tolist() == [0, 1, 2, 0]


def test_npz_with_only_x_and_y_names_and_gaps(tmp_path):
    images = np.zeros((4, 8, 8), np.uint8)
    np.savez(tmp_path / "names.npz", x=images, y=np.array(["b", "a", "b", "c"]))
    raw = read_npz(tmp_path / "names.npz", Resize.to(8))
    assert raw.test is None
    assert raw.classes == ("a", "b", "c")
    assert raw.train.labels.tolist() == [1, 0, 1, 2]
    np.savez(tmp_path / "gaps.npz", x=images, y=np.array([[7], [100], [7], [2]]))
    raw = read_npz(tmp_path / "gaps.npz", Resize.to(8))
    assert raw.classes == ("2", "7", "100")
    assert raw.train.labels.tolist() == [1, 2, 1, 0]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": IMAGES}, "no array 'y'"),
        ({"images": IMAGES}, "no array 'x'"),
        ({"train_x": IMAGES, "train_y": LABELS, "test_x": IMAGES}, "no array 'test_y'"),
        ({"x": IMAGES, "y": LABELS[:2]}, "3 images in x but 2 labels in y"),
        ({"x": IMAGES[0], "y": LABELS}, "x: shape"),
        ({"x": IMAGES, "y": LABELS.astype(float)}, "labels must be"),
        ({"x": IMAGES, "y": LABELS + 2, "label_names": np.array(["a", "b"])}, "label 2 but 2 label_names"),
        ({"x": IMAGES, "y": LABELS - 1, "label_names": np.array(["a", "b"])}, "label -1"),
        ({"x": IMAGES[:0], "y": LABELS[:0]}, "holds no image"),
        ({"x": np.array([{"an": "object"}]), "y": LABELS}, "not a readable .npz file of plain arrays"),
    ],
)
def test_bad_npz_files_are_named(tmp_path, arrays, message):
    path = tmp_path / "bad.npz"
    np.savez(path, **arrays)
    with pytest.raises(UsageError, match=message) as caught:
        read_npz(path, Resize.to(8))
    assert str(path) in one_line(caught)


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 broken"])
def test_damaged_npz_files_are_named(tmp_path, content):
    path = tmp_path / "bad.npz"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"not a readable \.npz") as caught:
        read_npz(path, Resize.to(8))
    assert str(path) in one_line(caught)


def test_npz_with_flipped_bytes_is_named(tmp_path, write_npz):
    path = write_npz(tmp_path / "bad.npz")
    content = bytearray(path.read_bytes())
    content[500] ^= 0xFF
    path.write_bytes(bytes(content))
    with pytest.raises(UsageError, match=r"bad\.npz"):
        read_npz(path, Resize.to(8))


def test_public_npz(tmp_path, write_npz):
    assert read_public_npz(write_npz(tmp_path / "a.npz"), Resize.to(16)).shape == (60, 3, 16, 16)
    np.savez(tmp_path / "x.npz", x=IMAGES)
    assert read_public_npz(tmp_path / "x.npz", Resize.to(8)).shape == (3, 3, 8, 8)
    np.savez(tmp_path / "z.npz", z=IMAGES)
    with pytest.raises(UsageError, match="no array 'train_x' or 'x'"):
        read_public_npz(tmp_path / "z.npz", Resize.to(8))
    np.savez(tmp_path / "w.npz", x=LABELS)
    with pytest.raises(UsageError, match=r"w\.npz: x: shape"):
        read_public_npz(tmp_path / "w.npz", Resize.to(8))


def test_class_folders(tmp_path, write_tree):
    write_tree(tmp_path / "site", ["dog", "cat"], per_class=3)
    (tmp_path / "site" / ".hidden").mkdir()
    (tmp_path / "site" / "cat" / "notes.txt").write_text("no image")
    raw = read_folder(tmp_path / "site", loader(16))
    assert raw.test is None
    assert raw.classes == ("cat", "dog")
    assert raw.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert raw.train.inputs.shape == (6, 3, 16, 16)


@pytest.mark.parametrize(
    "folders", [("train", "test"), ("train", "val"), ("imgs_train", "imgs_valid"), ("Train", "Test")]
)
def test_folders_with_splits(tmp_path, write_tree, folders):
    write_tree(tmp_path / "site" / folders[0], ["dog", "cat"], per_class=3)
    write_tree(tmp_path / "site" / folders[1], ["dog", "emu"], per_class=2)
    raw = read_folder(tmp_path / "site", loader(8))
    assert raw.classes == ("cat", "dog", "emu")
    assert raw.test is not None
    assert raw.test.labels.tolist() == [1, 1, 2, 2]


def test_a_lone_train_folder_and_a_class_called_train(tmp_path, write_tree):
    write_tree(tmp_path / "one" / "train", ["a", "b"], per_class=2)
    assert read_folder(tmp_path / "one", loader(8)).classes == ("a", "b")
    write_tree(tmp_path / "vehicles", ["bus", "train"], per_class=2)
    assert read_folder(tmp_path / "vehicles", loader(8)).classes == ("bus", "train")


def test_an_images_folder_in_between(tmp_path, write_tree):
    write_tree(tmp_path / "amazon" / "images", ["bike", "mug"], per_class=2)
    assert read_folder(tmp_path / "amazon", loader(8)).classes == ("bike", "mug")


def test_tiny_imagenet_layout(tmp_path, write_tree):
    root = tmp_path / "tiny-imagenet-200"
    for name in ("n01", "n02"):
        write_tree(root / "train" / name, ["images"], per_class=4)
    write_tree(root / "val", ["images"], per_class=2)
    write_tree(root / "test", ["images"], per_class=3)
    (root / "val" / "val_annotations.txt").write_text("000.png\tn02\t0\t0\t9\t9\n001.png\tn01\t0\t0\t9\t9\n")
    raw = read_folder(root, loader(8))
    assert raw.classes == ("n01", "n02")
    assert len(raw.train) == 8
    assert raw.test is not None
    assert raw.test.labels.tolist() == [1, 0]
    (root / "val" / "val_annotations.txt").write_text("000.png n02\n")
    with pytest.raises(UsageError, match=r"val_annotations\.txt: wanted lines"):
        read_folder(root, loader(8))


def test_pixels_survive_decoding(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    Image.fromarray(pixels[:, :, 0]).save(tmp_path / "b.png")
    (colour, grey), _ = loader(8).load([tmp_path / "a.png", tmp_path / "b.png"], tmp_path, "train")
    assert torch.equal(colour, torch.from_numpy(pixels).permute(2, 0, 1))
    assert torch.equal(grey, colour[:1].expand(3, -1, -1))


def test_other_image_modes_are_decoded(tmp_path):
    for mode in ("1", "L", "P", "RGBA", "CMYK"):
        suffix = "jpg" if mode == "CMYK" else "png"
        Image.new(mode, (9, 5)).save(tmp_path / f"{mode}.{suffix}")
    assert loader(8).load(images_below(tmp_path), tmp_path, "train")[0].shape == (5, 3, 8, 8)


def test_progress_is_told(tmp_path, write_tree):
    write_tree(tmp_path / "site", ["a", "b"], per_class=2)
    seen = []
    read_folder(tmp_path / "site", replace(loader(8), progress=lambda *step: seen.append(step)))
    assert seen == [(i, 4, "site") for i in (1, 2, 3, 4)]


def test_damaged_empty_and_missing_images_are_named(tmp_path, write_tree):
    paths = write_tree(tmp_path / "site", ["a"], per_class=2)
    whole = paths[1].read_bytes()
    for content, message in ((b"", "empty file"), (b"junk", "not a readable image"), (whole[:-40], "not a readable")):
        paths[1].write_bytes(content)
        with pytest.raises(UsageError, match=message) as caught:
            read_folder(tmp_path / "site", loader(8))
        assert str(paths[1]) in one_line(caught)
    with pytest.raises(UsageError, match=r"gone\.png: no such file"):
        loader(8).load([tmp_path / "gone.png"], tmp_path, "train")


def test_folders_without_classes_or_images_are_named(tmp_path, write_tree):
    write_tree(tmp_path, ["flat"], per_class=2)
    with pytest.raises(UsageError, match="flat: holds images but no class folders; wanted flat/<class>/<image>"):
        read_folder(tmp_path / "flat", loader(8))
    (tmp_path / "empty" / "dog").mkdir(parents=True)
    with pytest.raises(UsageError, match="empty: holds no images"):
        read_folder(tmp_path / "empty", loader(8))


def test_files_are_sorted_by_path_and_hidden_ones_skipped(tmp_path):
    names = ["b.png", "a/z.PNG", "a-1/y.jpg", "a/deep/er/x.tiff", "c.dcm", "a/.hidden.png", "a/notes.txt", "Z.png"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "link.png").symlink_to(tmp_path / "b.png")
    expected = sorted(tmp_path / name for name in [*names[:5], "Z.png", "link.png"])
    assert images_below(tmp_path) == expected


def test_notes_of_a_folder(tmp_path, write_tree):
    paths = write_tree(tmp_path / "site", ["a", "b"], per_class=2)
    pages = [Image.new("L", (8, 8), n) for n in (1, 2)]
    pages[0].save(paths[0].with_suffix(".tif"), save_all=True, append_images=pages[1:])
    raw = read_folder(tmp_path / "site", loader(8))
    assert raw.notes == ("site: 1 files have several pages; the first of each is used",)
