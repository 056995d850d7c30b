"""Read image sets from `.npz` files and folders of images. Every error names the file."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedchoir.data.decoded import DECODED
from fedchoir.data.domain import Raw
from fedchoir.data.image.decoding import SUFFIXES
from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.image.loading import ImageLoader
from fedchoir.data.image.pixels import as_images
from fedchoir.data.image.resize import Resize
from fedchoir.data.npz import named_labels, public_key, read_arrays, split_prefixes
from fedchoir.utils.errors import UsageError

TRAIN_FOLDERS = ("train", "training", "imgs_train")
TEST_FOLDERS = ("test", "testing", "imgs_test", "val", "valid", "validation", "imgs_valid")
ANNOTATIONS = "val_annotations.txt"


def data_root(root: Path | None) -> Path:
    """The folder of data sets: the argument, else $FEDCHOIR_DATA, else ~/.cache/fedchoir."""
    return Path(root or os.environ.get("FEDCHOIR_DATA") or Path.home() / ".cache" / "fedchoir").expanduser()


def plain(name: str) -> str:
    """A name in lower case without punctuation, to accept any usual spelling.

    >>> plain("Office-Caltech_10") == plain("office caltech10")
    True
    """
    return re.sub(r"[^a-z0-9]", "", name.lower())


def subfolders(folder: Path) -> list[Path]:
    """Visible sub-folders, sorted by name."""
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def find_folder(root: Path, relative: str) -> Path | None:
    """The folder ``relative`` to ``root`` in any case and punctuation; None if absent."""
    found = root
    for step in relative.split("/"):
        candidates = [d for d in subfolders(found) if plain(d.name) == plain(step)] if found.is_dir() else []
        if not candidates:
            return None
        found = candidates[0]
    return found


def find_npz(root: Path, stem: str) -> Path | None:
    """``<root>/<stem>.npz`` in any case and punctuation; None if absent."""
    files = sorted(root.glob("*.npz")) if root.is_dir() else []
    return next((file for file in files if plain(file.stem) == plain(stem)), None)


def read_npz(path: Path, resize: Resize) -> Raw:
    """Arrays ``train_x, train_y`` (and ``test_x, test_y``), or ``x, y``; optional ``label_names``."""
    return DECODED.get([path], ("npz", resize), lambda: _read_npz(path, resize))


def _read_npz(path: Path, resize: Resize) -> Raw:
    arrays = read_arrays(path)
    prefixes = split_prefixes(path, arrays)
    labels, classes = named_labels(path, [arrays[f"{p}y"] for p in prefixes], arrays.get("label_names"))
    sets = []
    for p, label in zip(prefixes, labels, strict=True):
        images = _images(path, arrays, f"{p}x", resize)
        if len(images) != len(label):
            raise UsageError(f"{path}: {len(images)} images in {p}x but {len(label)} labels in {p}y")
        sets.append(ImageSet(images, label))
    return Raw(sets[0], sets[1] if len(sets) > 1 else None, classes)


def read_public_npz(path: Path, resize: Resize) -> Tensor:
    """The images of ``train_x`` or ``x``, uint8 N×3×H×W; labels are ignored."""
    arrays = read_arrays(path)
    return _images(path, arrays, public_key(path, arrays), resize)


def _images(path: Path, arrays: dict[str, np.ndarray], key: str, resize: Resize) -> Tensor:
    try:
        return as_images(arrays[key], resize)
    except ValueError as error:
        raise UsageError(f"{path}: {key}: {error}") from error


def read_folder(folder: Path, loader: ImageLoader) -> Raw:
    """A folder of class folders, or of ``train/`` and ``test/`` (else ``val/``) with class folders in them."""
    inside = {plain(d.name): d for d in subfolders(folder)}
    if set(inside) == {"images"} and subfolders(inside["images"]):
        return read_folder(inside["images"], loader)
    train = next((inside[p] for p in map(plain, TRAIN_FOLDERS) if p in inside), None)
    tests = [inside[p] for p in map(plain, TEST_FOLDERS) if p in inside]
    if train is None or not (tests or len(inside) == 1):  # "train" may be the name of a class
        return read_lists([class_tree(folder)], folder, loader)
    splits = [class_tree(train)]
    if tests:
        annotated = [test for test in tests if (test / ANNOTATIONS).is_file()]
        splits.append(_annotated(annotated[0]) if annotated else class_tree(tests[0]))
    return read_lists(splits, folder, loader)


def class_tree(folder: Path) -> tuple[list[Path], list[str]]:
    """All images below ``folder``, sorted by path, and the names of their class folders."""
    paths, names = [], []
    for directory in subfolders(folder):
        found = images_below(directory)
        paths += found
        names += [directory.name] * len(found)
    if not paths:
        hint = "holds images but no class folders" if images_below(folder) else "holds no images"
        raise UsageError(f"{folder}: {hint}; wanted {folder.name}/<class>/<image>")
    return paths, names


def _annotated(folder: Path) -> tuple[list[Path], list[str]]:
    """Tiny-ImageNet's validation split: files in ``images/``, their classes in ``val_annotations.txt``."""
    rows = [line.split("\t") for line in (folder / ANNOTATIONS).read_text().splitlines() if line.strip()]
    if not rows or any(len(row) < 2 for row in rows):
        raise UsageError(f"{folder / ANNOTATIONS}: wanted lines of image name, tab, class")
    return [folder / "images" / row[0] for row in rows], [row[1] for row in rows]


def images_below(folder: Path) -> list[Path]:
    """Image files at any depth, sorted by path."""
    return [Path(path) for path in _image_paths(str(folder))]


def _image_paths(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:  # Path.rglob would take seconds for 100,000 files
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            yield from _image_paths(entry.path)
        elif entry.name.lower().endswith(SUFFIXES) and not entry.name.startswith(".") and entry.is_file():
            yield entry.path


def read_lists(splits: Sequence[tuple[list[Path], list[str]]], folder: Path, loader: ImageLoader) -> Raw:
    """Decode the (files, class names) of the training and test splits; classes are sorted by name."""
    classes = tuple(sorted({name for _, names in splits for name in names}))
    position = {name: i for i, name in enumerate(classes)}
    sets: list[ImageSet] = []
    notes: tuple[str, ...] = ()
    for split, (paths, names) in zip(("train", "test"), splits, strict=False):
        labels = torch.tensor([position[name] for name in names], dtype=torch.int64)
        images, more = loader.load(paths, folder, split)
        sets.append(ImageSet(images, labels))
        notes += more
    return Raw(sets[0], sets[1] if len(sets) > 1 else None, classes, notes)
