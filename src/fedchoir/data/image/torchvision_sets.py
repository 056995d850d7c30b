"""The six data sets that torchvision downloads, read in its on-disk layout."""

from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedchoir.data.domain import Raw
from fedchoir.data.image.files import data_root, plain
from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.image.pixels import as_images
from fedchoir.data.image.resize import Resize
from fedchoir.utils.errors import UsageError

SETS: dict[str, tuple[str, str]] = {  # torchvision's class, and a file that shows that it is there
    "mnist": ("MNIST", "MNIST/raw"),
    "usps": ("USPS", "usps.bz2"),
    "svhn": ("SVHN", "train_32x32.mat"),
    "cifar10": ("CIFAR10", "cifar-10-batches-py"),
    "cifar100": ("CIFAR100", "cifar-100-python"),
    "fashion_mnist": ("FashionMNIST", "FashionMNIST/raw"),
}


def open_set(name: str, root: Path, *, download: bool = False) -> list[Any]:
    """The training and test splits of a torchvision data set."""
    from torchvision import datasets  # not above: it takes a second to import

    kind = getattr(datasets, SETS[name][0])
    splits = ({"split": "train"}, {"split": "test"}) if name == "svhn" else ({"train": True}, {"train": False})
    return [kind(root, download=download, **split) for split in splits]


def fetch(name: str, root: Path | None = None) -> Path:
    """Download one of the six data sets into the data root (`data_root`)."""
    known = next((key for key in SETS if plain(key) == plain(name)), None)
    if known is None:
        sets = ", ".join(key.replace("_", "-") for key in SETS)
        raise UsageError(f"data fetch: {name!r} cannot be fetched; these can: {sets}")
    folder = data_root(root)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        open_set(known, folder, download=True)
    except (OSError, RuntimeError, HTTPException) as error:  # urllib's errors are OSErrors
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"data fetch {name}: download into {folder} failed ({reason}); is there a network?") from error
    return folder


def read_torchvision(name: str, root: Path, resize: Resize) -> Raw | None:
    """One of the six data sets from ``root``; None if it is missing."""
    if name not in SETS or not (file := root / SETS[name][1]).exists():
        return None
    try:
        splits = open_set(name, root)
    except (OSError, RuntimeError, ValueError, IndexError, EOFError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{file}: damaged or incomplete {name} ({reason})") from error
    train, test = (_image_set(split, resize) for split in splits)
    return Raw(train, test, _class_names(name, splits[0]))


def _image_set(split: Any, resize: Resize) -> ImageSet:
    labels = np.asarray(split.labels if hasattr(split, "labels") else split.targets, dtype=np.int64)
    return ImageSet(as_images(np.asarray(split.data), resize), torch.from_numpy(labels))


def _class_names(name: str, split: Any) -> tuple[str, ...]:
    """Digits are called "0" to "9"; the other data sets have class names."""
    if name in ("mnist", "usps", "svhn"):
        return tuple(str(digit) for digit in range(10))
    return tuple(split.classes)
