"""The published tables as sweep files: ``experiments/<paper>/<table>.toml``."""

import difflib
import re
from functools import cache
from pathlib import Path

from fedchoir.experiments.sweep import Job, jobs_of, read_sweep
from fedchoir.utils.errors import UsageError


@cache
def folder() -> Path:
    """The folder of the sweep files: beside ``src`` in a checkout, inside the package once installed (see setup.py)."""
    package = Path(__file__).parent
    for place in (package / "tables", package.parents[2] / "experiments"):
        if place.is_dir():
            return place
    raise UsageError("the folder experiments/ is neither in the package nor beside src/: install fedchoir again")


@cache
def tables() -> tuple[str, ...]:
    """The names of all tables and figures, such as ``fccl+/table8``, in the order of their numbers."""
    names = [f"{path.parent.name}/{path.stem}" for path in folder().glob("*/*.toml")]
    return tuple(sorted(names, key=lambda name: re.sub(r"\d+$", lambda digits: digits[0].zfill(3), name)))


def path_of(table: str) -> Path:
    """The file of a table."""
    name = table.lower().removesuffix(".toml").removeprefix("experiments/")
    if name in tables():
        return folder() / f"{name}.toml"
    near = difflib.get_close_matches(name, tables(), n=4, cutoff=0.5) or tables()
    raise UsageError(f"there is no table {table!r}; nearest: {', '.join(near)} (see: fedchoir reproduce --list)")


@cache
def table_with_runs(table: str) -> str:
    """The table that has the runs of this one: itself, or the one that it is ``like`` (Table 9 is like Table 8)."""
    path = path_of(table)
    return f"{path.parent.name}/{read_sweep(path).like or path.stem}"


@cache
def runs_of(table: str) -> tuple[Job, ...]:
    """The runs of a table, with its first seed."""
    file = read_sweep(path_of(table))
    return tuple(jobs_of(file.model_copy(update={"seeds": file.seeds[:1]}), Path("runs")))
