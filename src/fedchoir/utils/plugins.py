"""Methods of a user's own, without touching the package.

Three ways, all of which worker processes and Flower nodes see too: ``fedchoir --plugin my_method.py run mine``; the
environment variable FEDCHOIR_PLUGINS with files or module names, separated like PATH; or, for a package that is
installed, an entry point in the group ``fedchoir.methods``.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from fedchoir.utils.errors import UsageError

VARIABLE = "FEDCHOIR_PLUGINS"
GROUP = "fedchoir.methods"


def add_plugin(path: Path) -> None:
    """Name a file in FEDCHOIR_PLUGINS, which processes that we start inherit."""
    if not path.is_file():
        raise UsageError(f"--plugin {path} is not a file; it should be a Python file with a Method in it")
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = os.pathsep.join([*([before] if before else []), str(path.resolve())])


def load_plugins() -> set[str]:
    """Import every plug-in; gives the names of the modules whose methods are to be registered."""
    found = set()
    for place in os.environ.get(VARIABLE, "").split(os.pathsep):
        if place.strip():
            found.add(_load(place.strip()).__name__)
    for entry in entry_points(group=GROUP):
        found.add(_imported(entry.value.partition(":")[0], f"entry point {entry.name}").__name__)
    return found


def _load(place: str) -> ModuleType:
    if not place.endswith(".py"):
        return _imported(place, VARIABLE)
    path = Path(place).expanduser().resolve()
    if not path.is_file():
        raise UsageError(f"{VARIABLE} names {place}, which is not there")
    # one module for one path, so that two files of the same name do not become one
    name = f"fedchoir_plugin_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UsageError(f"plug-in {place} cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def _imported(name: str, whence: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise UsageError(f"{whence} names the module {name}, which cannot be loaded: {error}") from error
