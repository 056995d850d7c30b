"""Read series from `.npz` files."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedchoir.data.domain import Raw
from fedchoir.data.npz import named_labels, public_key, read_arrays, read_headers, split_prefixes
from fedchoir.data.series.series_set import SeriesSet
from fedchoir.utils.errors import UsageError


def read_series(path: Path) -> Raw:
    """Arrays ``train_x, train_y`` (and ``test_x, test_y``), or ``x, y``; x is N×channels×time."""
    arrays = read_arrays(path)
    prefixes = split_prefixes(path, arrays)
    labels, classes = named_labels(path, [arrays[f"{p}y"] for p in prefixes], arrays.get("label_names"))
    sets = []
    for prefix, label in zip(prefixes, labels, strict=True):
        series = as_series(path, f"{prefix}x", arrays[f"{prefix}x"])
        if len(series) != len(label):
            raise UsageError(f"{path}: {len(series)} series in {prefix}x but {len(label)} labels in {prefix}y")
        sets.append(SeriesSet(series, label))
    return Raw(sets[0], sets[1] if len(sets) > 1 else None, classes)


def read_public_series(path: Path) -> Tensor:
    """The series of ``train_x`` or ``x``; labels are ignored."""
    arrays = read_arrays(path)
    key = public_key(path, arrays)
    return as_series(path, key, arrays[key])


def as_series(path: Path, key: str, array: np.ndarray) -> Tensor:
    """Check an array of a file and convert it to float32 N×channels×time."""
    if array.ndim != 3 or 0 in array.shape or array.dtype.kind not in "fiu":
        shape = "×".join(map(str, array.shape))
        raise UsageError(f"{path}: {key} is {array.dtype} {shape}; series are numbers of shape N×channels×time")
    series = torch.from_numpy(array.astype(np.float32))
    if bad := int((~series.isfinite()).flatten(1).any(dim=1).sum()):
        raise UsageError(
            f"{path}: {key} has NaN or infinite values in {bad} of {len(series)} series; fill or drop them"
        )
    return series


def looks_like_series(path: Path) -> bool:
    """Whether a file holds series rather than images: x has three dimensions and its values cannot be pixels.

    Whole numbers from 0 to 255 are grey images. Numbers from 0 to 1 could be either, so they are refused here.
    """
    headers = read_headers(path)
    key = next((key for key in ("train_x", "x") if key in headers), "")
    shape, dtype = headers.get(key, ((), np.dtype(bool)))
    if len(shape) != 3 or 0 in shape or dtype.kind not in "fiu" or dtype == np.uint8:
        return False
    array = read_arrays(path, [key])[key]
    low, high = float(array.min()), float(array.max())
    if array.dtype.kind in "iu":
        return not 0 <= low <= high <= 255
    if 0 <= low <= high <= 1:
        raise UsageError(
            f"{path}: x is {array.dtype} N×{array.shape[1]}×{array.shape[2]} with values from 0 to 1, which could be "
            "grey images or series; set modality=image or modality=series"
        )
    return True
