"""Functions of a user's own code, named ``FILE.py:FUNCTION`` or ``package.module:FUNCTION``."""

from collections.abc import Callable
from typing import Any

from fedchoir.utils.errors import UsageError
from fedchoir.utils.plugins import import_module, load_file


def is_factory(text: str) -> bool:
    """Whether a text names a function.

    >>> is_factory("nets.py:build"), is_factory("my.nets:build"), is_factory("timm:resnet18"), is_factory("mlp")
    (True, True, False, False)
    """
    place, colon, function = text.rpartition(":")
    module = place.endswith(".py") or (place != "timm" and all(part.isidentifier() for part in place.split(".")))
    return bool(colon) and function.isidentifier() and module


def load_factory(text: str, field: str) -> Callable[..., Any]:
    """The function that ``text`` names; ``field`` is the option that contains it, for errors."""
    place, _, name = text.rpartition(":")
    module = load_file(place, field) if place.endswith(".py") else import_module(place, field)
    function = getattr(module, name, None)
    if function is None:
        raise UsageError(f"{field}: {place} has nothing called {name!r}")
    if not callable(function):
        raise UsageError(f"{field}: {name} in {place} is not a function or class")
    return function
