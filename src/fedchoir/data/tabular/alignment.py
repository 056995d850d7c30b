"""Columns of several clients, aligned by name."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import get_args

import pandas as pd
import torch
from pandas.api import types
from torch import Tensor

from fedchoir.data.tabular.cells import YES_NO, as_text
from fedchoir.data.tabular.column import Alignment, Column, Kind, key
from fedchoir.utils.errors import UsageError

MAX_CATEGORIES = 100
_ISO_DATE = r"\d{4}-\d{2}-\d{2}(?:$|[T ])"


def agree(
    frames: Mapping[str, pd.DataFrame], categorical: Iterable[str] = (), alignment: Alignment = "by-name"
) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """The columns of all clients together, in the order of their first appearance, with notes about differences."""
    spelled = {client: {key(name): str(name) for name in frame.columns} for client, frame in frames.items()}
    union: dict[str, str] = {}
    for names in spelled.values():
        union |= {name: original for name, original in names.items() if name not in union}
    declared = {key(name) for name in categorical}
    if unknown := declared - set(union):
        raise UsageError(f"categorical: there is no column {min(unknown)!r}; columns: {shown(union.values())}")
    differences = [f"{client} {found}" for client, names in spelled.items() if (found := compare(names, union))]
    notes: list[str] = []
    columns: list[Column] = []
    for name, original in union.items():
        series = {client: frames[client][names[name]] for client, names in spelled.items() if name in names}
        kind, more = _common_kind(original, series, name in declared)
        notes += more
        if kind == "categorical":
            categories, differing = _common_categories(series)
            differences += [f"categories of {original} differ: {differing}"] if differing else []
            if len(categories) > MAX_CATEGORIES:
                notes.append(f"column {original} is left out: {len(categories)} different values are too many")
                continue
            columns.append(Column(original, kind, categories, observed=True))
        elif kind is not None:
            columns.append(Column(original, kind, observed=True))
    if differences and alignment == "strict":
        raise UsageError(f"columns differ: {'; '.join(differences)} (alignment = 'by-name' aligns them)")
    if not columns:
        raise UsageError(f"no column is left to learn from: {'; '.join(notes)}")
    return tuple(columns), (*differences, *notes, describe(columns))


def compare(names: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """How a table's columns differ from those wanted, in words; both by their `key`. Empty where they do not."""
    missing = [name for k, name in wanted.items() if k not in names]
    extra = [name for k, name in names.items() if k not in wanted]
    found = [f"lacks the columns {shown(missing)}"] if missing else []
    found += [f"also has the columns {shown(extra)}"] if extra else []
    if [k for k in wanted if k in names] != [k for k in names if k in wanted]:
        found.append("has the columns in another order")
    return " and ".join(found)


def _common_kind(name: str, series: Mapping[str, pd.Series], categorical: bool) -> tuple[Kind | None, list[str]]:
    """The kind of a column at all clients, and notes; None where it has no values."""
    kinds = {client: kind for client, values in series.items() if (kind := kind_of(values)) is not None}
    empty = [client for client in series if client not in kinds]
    if not kinds:
        return None, [f"column {name} is left out: it has no values"]
    notes = [f"column {name} has no values at {shown(empty)}"] if empty else []
    found = set(kinds.values())
    if categorical or found == {"categorical"}:
        return "categorical", notes
    if found == {"date"}:
        return "date", [*notes, f"column {name} holds dates: they are used as days since 1970-01-01"]
    if found <= {"boolean", "numeric"}:
        return "boolean" if found == {"boolean"} else "numeric", notes
    what = ", ".join(f"{kind} at {client}" for client, kind in kinds.items())
    raise UsageError(f"column {name}: {what}; correct the files, or declare it: --set categorical={name}")


def _common_categories(series: Mapping[str, pd.Series]) -> tuple[tuple[str, ...], str]:
    """The categories of all clients, sorted, and how those of the clients differ, in words."""
    have = {
        client: {key(text): text for text in as_text(values.dropna()).unique()} for client, values in series.items()
    }
    union = {k: text for texts in reversed(have.values()) for k, text in texts.items()}  # the first spelling stays
    other = [f"{client} has {len(texts)}" for client, texts in have.items() if texts and set(texts) != set(union)]
    return tuple(union[k] for k in sorted(union)), f"{len(union)} in total, {', '.join(other)}" if other else ""


def kind_of(values: pd.Series) -> Kind | None:
    """The kind of a column by its values; None if all are missing.

    >>> [kind_of(pd.Series(cells)) for cells in ([1, 2.5], [0, 1], ["a", "b"], ["Yes", "no"], ["2024-02-28"], [None])]
    ['numeric', 'boolean', 'categorical', 'boolean', 'date', None]
    """
    values = values.dropna()
    if values.empty:
        return None
    if types.is_datetime64_any_dtype(values):
        return "date"
    if types.is_bool_dtype(values):
        return "boolean"
    if types.is_numeric_dtype(values):
        return "boolean" if values.isin([0, 1]).all() else "numeric"
    text = as_text(values).str.casefold()
    if any(set(text.unique()) <= pair for pair in YES_NO):
        return "boolean"
    return "date" if text.str.match(_ISO_DATE).all() else "categorical"


def with_ranges(columns: Sequence[Column], stored: Sequence[Tensor]) -> tuple[Column, ...]:
    """The columns with the ranges of the stored values, where none is agreed."""
    cells = torch.cat(list(stored)).double()
    low = cells.nan_to_num(nan=float("inf")).amin(0).tolist()
    high = cells.nan_to_num(nan=float("-inf")).amax(0).tolist()
    return tuple(
        replace(c, min=a, max=b) if c.kind in ("numeric", "date") and c.range is None and a < b else c
        for c, a, b in zip(columns, low, high, strict=True)
    )


def describe(columns: Sequence[Column]) -> str:
    """The columns by kind, in one line.

    >>> describe([Column("age"), Column("cp", "categorical", ("1", "2"))])
    'columns: 1 numeric (age), 1 categorical (cp: 1, 2)'
    """
    kinds = []
    for kind in get_args(Kind):
        names = [f"{c.name}: {shown(c.categories)}" if c.categories else c.name for c in columns if c.kind == kind]
        kinds += [f"{len(names)} {kind} ({shown(names, '; ' if kind == 'categorical' else ', ')})"] if names else []
    return f"columns: {', '.join(kinds)}"


def shown(names: Iterable[object], separator: str = ", ") -> str:
    """The first names of a list, for a message."""
    listed = [str(name) for name in names]
    return separator.join(listed[:8]) + (f"{separator}and {len(listed) - 8} more" if len(listed) > 8 else "")
