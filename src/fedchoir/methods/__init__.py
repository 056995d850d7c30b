"""The methods, one file each. A file in this folder that defines a `Method` with a name is registered by being here;
a user's own are plug-ins (`fedchoir.utils.plugins`)."""

import difflib
import importlib
import pkgutil
from functools import cache

from fedchoir.methods.base import Method
from fedchoir.methods.condensed_public import CONDENSED, on_condensed
from fedchoir.utils.errors import UsageError
from fedchoir.utils.plugins import load_plugins


@cache
def registry() -> dict[str, type[Method]]:
    """Every method by its name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    guests = load_plugins()
    found: dict[str, type[Method]] = {}
    queue = [Method]
    while queue:
        for cls in queue.pop().__subclasses__():
            queue.append(cls)
            ours = cls.__module__.startswith(f"{__name__}.")
            if "name" not in vars(cls) or not (ours or cls.__module__ in guests):
                continue
            if cls.name in found and found[cls.name] is not cls:
                mine, other = sorted((cls, found[cls.name]), key=lambda c: c.__module__ in guests)
                raise UsageError(f"{other.__module__} has a method {cls.name!r}, but {mine.__module__} has one already")
            found[cls.name] = cls
    return dict(sorted(found.items()))


@cache
def aliases() -> dict[str, str]:
    """Earlier names of methods, and the present ones."""
    return {old: name for name, method in registry().items() for old in vars(method).get("aliases", ())}


def get(name: str, public: object = None) -> type[Method]:
    """The method of this name or alias on a public set, or one line that names the nearest ones."""
    methods = registry()
    name = aliases().get(name, name)
    if name not in methods:
        near = difflib.get_close_matches(name, methods, n=3, cutoff=0.4) or sorted(methods)
        raise UsageError(f"no method is called {name!r}; nearest: {', '.join(near)} (see: fedchoir list methods)")
    return with_public(methods[name], public)


def with_public(method: type[Method], public: object) -> type[Method]:
    """The method as it runs on a public set, given by its name: on ``condensed``, the clients make the set first."""
    return on_condensed(method) if public == CONDENSED and method.needs_public else method
