"""The published tables as sweeps: ``experiments/<paper>/<table>.toml``, in a checkout or in an installed package."""

from __future__ import annotations

import difflib
from functools import cache
from pathlib import Path

from fedchoir.experiments.sweep import Job, home_of, jobs_of, read_sweep
from fedchoir.utils.errors import UsageError


@cache
def folder() -> Path:
    """Where the sweep files lie: beside ``src`` in a checkout, inside the package once installed (see setup.py)."""
    package = Path(__file__).parent
    for place in (package / "tables", package.parents[2] / "experiments"):
        if place.is_dir():
            return place
    raise UsageError("the folder experiments/ is neither in the package nor beside src/: install fedchoir again")


@cache
def tables() -> tuple[str, ...]:
    """The names of all tables and figures: ``fccl+/table8`` and so on."""

    def order(path: Path) -> tuple[str, str, int]:
        digits = "".join(filter(str.isdecimal, path.stem))
        return path.parent.name, path.stem.rstrip("0123456789"), int(digits or 0)

    return tuple(f"{path.parent.name}/{path.stem}" for path in sorted(folder().glob("*/*.toml"), key=order))


def path_of(table: str) -> Path:
    """The file of a table, or one line with the nearest names."""
    name = table.lower().removesuffix(".toml").removeprefix("experiments/")
    if name in tables():
        return folder() / f"{name}.toml"
    near = difflib.get_close_matches(name, tables(), n=4, cutoff=0.5) or tables()
    raise UsageError(f"there is no table {table!r}; nearest: {', '.join(near)} (see: fedchoir reproduce --list)")


@cache
def find(table: str) -> str:
    """The table that has the runs of this one: itself, or the one that it is like (Table 9 is like Table 8)."""
    home = home_of(path_of(table))
    return f"{home.parent.name}/{home.stem}"


@cache
def runs_of(table: str) -> tuple[Job, ...]:
    """The runs of a table, each once (its first seed)."""
    file = read_sweep(path_of(table))
    return tuple(jobs_of(file.model_copy(update={"seeds": file.seeds[:1]}), Path("runs")))
