"""The target column of a table: which one it is, its classes, and the labels of the rows."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from pandas.api import types
from torch import Tensor

from fedchoir.data.tabular.cells import as_text
from fedchoir.data.tabular.column import key
from fedchoir.utils.errors import UsageError

USUAL = ("label", "target", "y")
MAX_CLASSES = 1000


def target_name(frames: Mapping[str, pd.DataFrame], wanted: str | None) -> tuple[str, tuple[str, ...]]:
    """The name of the target column of all clients, and a note if it was guessed."""
    first = next(iter(frames.values()))
    names = {key(name): str(name) for name in first.columns}
    usual = next((names[name] for name in USUAL if name in names), None)
    target = wanted or usual or str(first.columns[-1])
    for client, frame in frames.items():
        _cells(frame, target, client)
    if wanted or usual:
        return target, ()
    return target, (f"target: {target}, because it is the last column (--set target=NAME chooses another)",)


def class_names(frames: Mapping[str, pd.DataFrame], target: str) -> tuple[str, ...]:
    """The classes in the training rows of all clients, sorted."""
    found: set[str] = set()
    for client, frame in frames.items():
        values = _cells(frame, target, client)
        fractions = values[values % 1 != 0] if types.is_float_dtype(values) else values[:0]
        if len(fractions):
            raise UsageError(
                f"target: {target} at {client} has the value {fractions.iloc[0]}; wanted names or whole numbers"
            )
        found |= set(as_text(values))
    if not 2 <= len(found) <= MAX_CLASSES:
        raise UsageError(f"target: {target} has {len(found)} different values; wanted 2 to {MAX_CLASSES} classes")
    whole = all(text.lstrip("-").isdecimal() for text in found)
    return tuple(sorted(found, key=(lambda text: (int(text), text)) if whole else None))


def labels_of(frame: pd.DataFrame, target: str, classes: Sequence[str], where: str) -> Tensor:
    """The labels of the rows as positions in ``classes``: int64, N."""
    text = as_text(_cells(frame, target, where))
    position = {name: i for i, name in enumerate(classes)}
    if unknown := sorted(set(text) - set(position)):
        shown = ", ".join(classes[:20])
        raise UsageError(f"{where}: the label {unknown[0]!r} was never seen in training; labels: {shown}")
    return torch.from_numpy(text.map(position).to_numpy(np.int64, copy=True))


def without(frame: pd.DataFrame, target: str) -> pd.DataFrame:
    """All columns but the target."""
    return frame.drop(columns=[name for name in frame.columns if key(name) == key(target)])


def _cells(frame: pd.DataFrame, target: str, where: str) -> pd.Series:
    name = next((name for name in frame.columns if key(name) == key(target)), None)
    if name is None:
        shown = ", ".join(map(str, frame.columns[:12]))
        raise UsageError(f"target: {where} has no column {target!r}; its columns: {shown} (--set target=NAME)")
    values = frame[name]
    if missing := int(values.isna().sum()):
        row = int(values.isna().to_numpy().argmax()) + 1
        raise UsageError(
            f"{where}: the target {target} is missing in {missing} of {len(values)} rows, first in row {row}"
        )
    return values
