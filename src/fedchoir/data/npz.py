"""`.npz` files of arrays and labels. Every error names the file."""

import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedchoir.utils.errors import UsageError

_DAMAGED = (
    OSError, ValueError, AttributeError, EOFError, KeyError, SyntaxError, TypeError, RuntimeError, ArithmeticError,
    MemoryError, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def read_arrays(path: Path, keys: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """All arrays of a file, or those named; pickled objects are refused."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {key: stored[key] for key in keys or stored.files}
    except _DAMAGED as error:
        raise _unreadable(path, error) from error


def read_headers(path: Path) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """The shape and dtype of every array, without reading the arrays."""
    headers = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.namelist():
                with archive.open(entry) as file:
                    version = np.lib.format.read_magic(file)
                    first = version == (1, 0)  # later ones have longer headers
                    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
                    shape, _, dtype = read(file)
                headers[entry.removesuffix(".npy")] = (shape, dtype)
    except _DAMAGED as error:
        raise _unreadable(path, error) from error
    return headers


def _unreadable(path: Path, error: Exception) -> UsageError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return UsageError(f"{path}: not a readable .npz file of plain arrays ({reason})")


def split_prefixes(path: Path, arrays: dict[str, np.ndarray]) -> list[str]:
    """The prefixes of the training and, if there is one, the test split: ``train_`` or none, and ``test_``."""
    prefix = "train_" if "train_x" in arrays else ""
    prefixes = [p for p in (prefix, "test_") if f"{p}x" in arrays or p == prefix]
    missing = [f"{p}{k}" for p in prefixes for k in "xy" if f"{p}{k}" not in arrays]
    if missing:
        raise UsageError(f"{path}: no array {missing[0]!r}; wanted train_x, train_y, test_x, test_y, or x and y")
    return prefixes


def public_key(path: Path, arrays: dict[str, np.ndarray]) -> str:
    """The name of the array that holds a public set."""
    key = next((k for k in ("train_x", "x") if k in arrays), None)
    if key is None:
        raise UsageError(f"{path}: no array 'train_x' or 'x'")
    return key


def named_labels(
    path: Path, arrays: Sequence[np.ndarray], names: np.ndarray | None
) -> tuple[list[Tensor], tuple[str, ...]]:
    """Labels of every split as positions in one tuple of class names."""
    flat = [a.reshape(-1) if a.ndim == 2 and a.shape[1] == 1 else a for a in arrays]
    if any(a.ndim != 1 or a.dtype.kind not in "iuU" for a in flat):
        raise UsageError(f"{path}: labels must be one whole number or one name per sample")
    values, positions = np.unique(np.concatenate(flat), return_inverse=True)
    classes = tuple(str(v) for v in values)
    if names is not None and values.dtype.kind != "U":
        if len(values) and not 0 <= values[0] <= values[-1] < len(names):
            raise UsageError(f"{path}: label {values[-1]} but {len(names)} label_names")
        classes, positions = tuple(str(n) for n in names), np.concatenate(flat)
    cuts = np.cumsum([len(a) for a in flat])[:-1]
    return [torch.from_numpy(p.astype(np.int64)) for p in np.split(positions, cuts)], classes
