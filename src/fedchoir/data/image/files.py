"""Read image sets from `.npz` files and folders of images. Every error names the file."""

import os
import re
import zipfile
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.datasets.folder import IMG_EXTENSIONS

from fedchoir.data.image.image_set import ImageSet, as_images
from fedchoir.utils.errors import UsageError

Progress = Callable[[int, int, str], None]  # decoded images, all images, name of the data set

TRAIN_FOLDERS = ("train", "training", "imgs_train")
TEST_FOLDERS = ("test", "testing", "imgs_test", "val", "valid", "validation", "imgs_valid")
ANNOTATIONS = "val_annotations.txt"


@dataclass(frozen=True)
class Raw:
    """An image set as found on disk; ``test`` is None where there is no test split."""

    train: ImageSet
    test: ImageSet | None
    classes: tuple[str, ...]


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


def read_npz(path: Path, size: int) -> Raw:
    """Arrays ``train_x, train_y`` (and ``test_x, test_y``), or ``x, y``; optional ``label_names``."""
    arrays = _npz_arrays(path)
    prefix = "train_" if "train_x" in arrays else ""
    prefixes = [p for p in (prefix, "test_") if f"{p}x" in arrays or p == prefix]
    missing = [f"{p}{k}" for p in prefixes for k in "xy" if f"{p}{k}" not in arrays]
    if missing:
        raise UsageError(f"{path}: no array {missing[0]!r}; wanted train_x, train_y, test_x, test_y, or x and y")
    labels, classes = _named_labels(path, [arrays[f"{p}y"] for p in prefixes], arrays.get("label_names"))
    sets = []
    for p, label in zip(prefixes, labels, strict=True):
        images = _images(path, arrays, f"{p}x", size)
        if len(images) != len(label):
            raise UsageError(f"{path}: {len(images)} images in {p}x but {len(label)} labels in {p}y")
        sets.append(ImageSet(images, label))
    return Raw(sets[0], sets[1] if len(sets) > 1 else None, classes)


def read_public_npz(path: Path, size: int) -> Tensor:
    """The images of ``train_x`` or ``x``, uint8 N×3×S×S; labels are ignored."""
    arrays = _npz_arrays(path)
    key = next((k for k in ("train_x", "x") if k in arrays), None)
    if key is None:
        raise UsageError(f"{path}: no array 'train_x' or 'x'")
    return _images(path, arrays, key, size)


def _images(path: Path, arrays: dict[str, np.ndarray], key: str, size: int) -> Tensor:
    try:
        return as_images(arrays[key], size)
    except ValueError as error:
        raise UsageError(f"{path}: {key}: {error}") from error


def _npz_arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {key: stored[key] for key in stored.files}
    except (OSError, ValueError, AttributeError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"{path}: not a readable .npz file of plain arrays ({reason})") from error


def _named_labels(
    path: Path, arrays: Sequence[np.ndarray], names: np.ndarray | None
) -> tuple[list[Tensor], tuple[str, ...]]:
    """Labels of every split as positions in one tuple of class names."""
    flat = [a.reshape(-1) if a.ndim == 2 and a.shape[1] == 1 else a for a in arrays]
    if any(a.ndim != 1 or a.dtype.kind not in "iuU" for a in flat):
        raise UsageError(f"{path}: labels must be one whole number or one name per image")
    values, positions = np.unique(np.concatenate(flat), return_inverse=True)
    classes = tuple(str(v) for v in values)
    if names is not None and values.dtype.kind != "U":
        if len(values) and not 0 <= values[0] <= values[-1] < len(names):
            raise UsageError(f"{path}: label {values[-1]} but {len(names)} label_names")
        classes, positions = tuple(str(n) for n in names), np.concatenate(flat)
    cuts = np.cumsum([len(a) for a in flat])[:-1]
    return [torch.from_numpy(p.astype(np.int64)) for p in np.split(positions, cuts)], classes


def read_folder(folder: Path, size: int, progress: Progress | None = None) -> Raw:
    """A folder of class folders, or of ``train/`` and ``test/`` (else ``val/``) with class folders in them."""
    inside = {plain(d.name): d for d in subfolders(folder)}
    if set(inside) == {"images"} and subfolders(inside["images"]):
        return read_folder(inside["images"], size, progress)
    train = next((inside[p] for p in map(plain, TRAIN_FOLDERS) if p in inside), None)
    tests = [inside[p] for p in map(plain, TEST_FOLDERS) if p in inside]
    if train is None or not (tests or len(inside) == 1):  # "train" may be the name of a class
        return read_lists([class_tree(folder)], size, folder.name, progress)
    splits = [class_tree(train)]
    if tests:
        annotated = [test for test in tests if (test / ANNOTATIONS).is_file()]
        splits.append(_annotated(annotated[0]) if annotated else class_tree(tests[0]))
    return read_lists(splits, size, folder.name, progress)


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
    found = (p for p in folder.rglob("*") if p.suffix.lower() in IMG_EXTENSIONS and not p.name.startswith("."))
    return sorted(p for p in found if p.is_file())


def read_lists(
    splits: Sequence[tuple[list[Path], list[str]]], size: int, title: str, progress: Progress | None = None
) -> Raw:
    """Decode the (files, class names) of the training and test splits; classes are sorted by name."""
    classes = tuple(sorted({name for _, names in splits for name in names}))
    position = {name: i for i, name in enumerate(classes)}
    sets = []
    for paths, names in splits:
        labels = torch.tensor([position[name] for name in names], dtype=torch.int64)
        sets.append(ImageSet(decode(paths, size, title, progress), labels))
    return Raw(sets[0], sets[1] if len(sets) > 1 else None, classes)


def decode(paths: Sequence[Path], size: int, title: str = "", progress: Progress | None = None) -> Tensor:
    """Image files → uint8 N×3×S×S, in order: bilinear with antialiasing, three channels."""
    images = torch.empty((len(paths), 3, size, size), dtype=torch.uint8)
    with ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1)) as pool:
        for i, pixels in enumerate(pool.map(lambda path: _decode_one(path, size), paths)):
            images[i] = torch.from_numpy(pixels).permute(2, 0, 1)
            if progress is not None:
                progress(i + 1, len(paths), title)
    return images


def _decode_one(path: Path, size: int) -> np.ndarray:
    try:
        with Image.open(path) as opened:
            small = opened.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    except Exception as error:  # Pillow's decoders raise many kinds of errors on damaged files
        reason = "empty file" if path.is_file() and not path.stat().st_size else "not a readable image"
        raise UsageError(f"{path}: {reason if path.is_file() else 'no such file'}") from error
    return np.array(small)
