"""Scenarios and public sets of a user's own code: ``FILE.py:FUNCTION`` or ``package.module:FUNCTION``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from fedchoir.utils.errors import UsageError
from fedchoir.utils.factories import load_factory

_last: list[tuple[Callable[..., Any], Any]] = []  # the function that was called last, and what it returned


def clients_of(name: str) -> dict[str, Any]:
    """Client name → its data, or (training, test) pair, in the order of the function's dict.

    The function is called once, however often its scenario is described and loaded.
    """
    function = load_factory(name, "scenario")
    if not _last or _last[0][0] is not function:
        _last[:] = [(function, function())]
    found = _last[0][1]
    if not isinstance(found, Mapping) or not found:
        raise UsageError(
            f"scenario: {name} returned a {type(found).__name__}; wanted a dict from client name to Dataset or "
            "pandas DataFrame"
        )
    return {str(client): data for client, data in found.items()}


def are_tables(clients: Mapping[str, Any]) -> bool:
    """Whether the data of all clients are data frames; those of some only are refused."""
    splits = {name: data if isinstance(data, tuple | list) else (data,) for name, data in clients.items()}
    tables = {name: [is_table(part) for part in of_client] for name, of_client in splits.items()}
    if not any(map(any, tables.values())):
        return False
    for name, found in tables.items():
        if not found or not all(found) or len(found) > 2:
            raise UsageError(
                f"scenario: {name} has {_kinds(splits[name])}; wanted one pandas DataFrame, or one for training and "
                "one for testing, for every client"
            )
    return True


def is_table(data: Any) -> bool:
    """Whether it is a data frame, without importing pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, pandas.DataFrame)


def _kinds(splits: tuple[Any, ...] | list[Any]) -> str:
    return " and ".join(f"a {type(part).__name__}" for part in splits) or "nothing"
