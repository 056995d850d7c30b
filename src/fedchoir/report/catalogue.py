"""What there is: methods, scenarios, models, public sets and their options, as tables for the terminal."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from fedchoir import methods, models
from fedchoir.data.catalogue import SCENARIOS
from fedchoir.data.domains import SOURCES, found
from fedchoir.data.files import data_root
from fedchoir.data.public import PUBLIC


def listing(what: str) -> Table:
    """The table of one kind of thing."""
    return {"methods": _methods, "scenarios": _scenarios, "models": _models, "public": _public}[what]()


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold cyan")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _methods() -> Table:
    table = _table("methods", "name", "what it does", "models", "public set", "paper")
    for name, cls in methods.registry().items():
        kinds = "different or alike" if cls.heterogeneous else "alike"
        table.add_row(f"[bold]{name}[/]", cls.title, kinds, "needed" if cls.needs_public else "–", cls.paper or "–")
    return table


def _scenarios() -> Table:
    table = _table("scenarios (or a folder with one sub-folder or .npz per client)", "name", "what it is", "models")
    for name, known in SCENARIOS.items():
        table.add_row(f"[bold]{name}[/]", known.title, ", ".join(known.models))
    return table


def _models() -> Table:
    table = _table("models (NAME@WIDTH narrows one; timm:NAME takes any of timm's)", "name", "what it is")
    for name in models.names():
        table.add_row(f"[bold]{name}[/]", models.describe(name))
    return table


def _public() -> Table:
    table = _table("public sets (or a folder of images, or an .npz)", "name", "what it is")
    for name, text in PUBLIC.items():
        table.add_row(f"[bold]{name}[/]", text)
    return table


def options_table(name: str) -> Table:
    """Every option of a method, the method's own first, with default and meaning."""
    cls = methods.get(name)
    table = _table(f"options of {name} (--set key=value)", "option", "default", "paper", "official", "meaning")
    profiles = [cls.profile(profile, "") for profile in ("paper", "official")]
    own = set(cls.Params.__annotations__)
    for key in sorted(cls.Params.model_fields, key=lambda k: k not in own):
        field = cls.Params.model_fields[key]
        others = [str(profile[key]) if key in profile else "" for profile in profiles]
        label = f"[bold]{key}[/]" if key in own else key
        table.add_row(label, str(field.default), *others, field.description or "")
    return table


def data_table(root: Path | None) -> Table:
    """Which data sets lie under the data root."""
    folder = data_root(root)
    table = _table(f"data sets under {folder}", "name", "found", "how to get it")
    for name, source in SOURCES.items():
        where = found(name, root)
        table.add_row(f"[bold]{name}[/]", f"[green]{where}[/]" if where else "[red]no[/]", "" if where else source.get)
    return table
