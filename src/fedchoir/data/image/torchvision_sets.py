"""The six data sets that torchvision downloads, read in its on-disk layout."""

from __future__ import annotations

from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision import datasets

from fedchoir.data.image.files import Raw, data_root, plain
from fedchoir.data.image.image_set import ImageSet, as_images
from fedchoir.utils.errors import UsageError

Opener = Callable[[Path, bool, bool], Any]  # root, training split?, download? → torchvision data set

OPENERS: dict[str, Opener] = {
    "mnist": lambda root, train, download: datasets.MNIST(root, train=train, download=download),
    "usps": lambda root, train, download: datasets.USPS(root, train=train, download=download),
    "svhn": lambda root, train, download: datasets.SVHN(root, split="train" if train else "test", download=download),
    "cifar10": lambda root, train, download: datasets.CIFAR10(root, train=train, download=download),
    "cifar100": lambda root, train, download: datasets.CIFAR100(root, train=train, download=download),
    "fashion_mnist": lambda root, train, download: datasets.FashionMNIST(root, train=train, download=download),
}
FILES = {  # whose presence shows that the data set is there
    "mnist": "MNIST/raw",
    "usps": "usps.bz2",
    "svhn": "train_32x32.mat",
    "cifar10": "cifar-10-batches-py",
    "cifar100": "cifar-100-python",
    "fashion_mnist": "FashionMNIST/raw",
}


def fetch(name: str, root: Path | None = None) -> Path:
    """Download one of the six data sets into the data root (`data_root`)."""
    known = next((key for key in OPENERS if plain(key) == plain(name)), None)
    if known is None:
        sets = ", ".join(key.replace("_", "-") for key in OPENERS)
        raise UsageError(f"data fetch: {name!r} cannot be fetched; these can: {sets}")
    folder = data_root(root)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for train in (True, False):
            OPENERS[known](folder, train, True)
    except (OSError, RuntimeError, HTTPException) as error:  # urllib's errors are OSErrors
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"data fetch {name}: download into {folder} failed ({reason}); is there a network?") from error
    return folder


def read_torchvision(name: str, root: Path, size: int) -> Raw | None:
    """One of the six data sets from ``root``; None if it is missing."""
    if name not in OPENERS or not (root / FILES[name]).exists():
        return None
    try:
        splits = [OPENERS[name](root, train, False) for train in (True, False)]
    except (OSError, RuntimeError, ValueError, IndexError, EOFError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{root / FILES[name]}: damaged or incomplete {name} ({reason})") from error
    train, test = (_image_set(split, size) for split in splits)
    return Raw(train, test, _class_names(name, splits[0]))


def _image_set(split: Any, size: int) -> ImageSet:
    labels = np.asarray(split.labels if hasattr(split, "labels") else split.targets, dtype=np.int64)
    return ImageSet(as_images(np.asarray(split.data), size), torch.from_numpy(labels))


def _class_names(name: str, split: Any) -> tuple[str, ...]:
    """Digits are called "0" to "9"; the other data sets have class names."""
    if name in ("mnist", "usps", "svhn"):
        return tuple(str(digit) for digit in range(10))
    return tuple(split.classes)
