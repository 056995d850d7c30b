"""Plug-ins: methods outside the package.

A plug-in is a Python file given with ``fedchoir --plugin my_method.py``, a file or module named in the environment
variable FEDCHOIR_PLUGINS (separated like PATH), or an entry point in the group ``fedchoir.methods``. Worker processes
and Flower nodes load them too.
"""

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
    """Add a file to FEDCHOIR_PLUGINS, which child processes inherit."""
    if not path.is_file():
        raise UsageError(f"--plugin {path} is not a file; it should be a Python file with a Method in it")
    before = [os.environ[VARIABLE]] if os.environ.get(VARIABLE) else []
    os.environ[VARIABLE] = os.pathsep.join([*before, str(path.resolve())])


def load_plugins() -> set[str]:
    """Import every plug-in and return the names of the modules."""
    places = [place.strip() for place in os.environ.get(VARIABLE, "").split(os.pathsep) if place.strip()]
    modules = [(load_file if place.endswith(".py") else import_module)(place, VARIABLE) for place in places]
    for entry in entry_points(group=GROUP):
        modules.append(import_module(entry.value.partition(":")[0], f"entry point {entry.name}"))
    return {module.__name__ for module in modules}


def load_file(place: str, source: str) -> ModuleType:
    """Import a Python file once; ``source`` is what names it, for errors."""
    path = Path(place).expanduser().resolve()
    if not path.is_file():
        raise UsageError(f"{source} names {place}, which is not there")
    # the path is part of the name: two files of the same name are two modules
    name = f"fedchoir_plugin_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))  # the file may import its neighbours
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UsageError(f"{source}: {place} cannot be loaded: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.parent))
    return module


def import_module(name: str, source: str) -> ModuleType:
    """Import a module; ``source`` is what names it, for errors."""
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise UsageError(f"{source} names the module {name}, which cannot be loaded: {error}") from error
