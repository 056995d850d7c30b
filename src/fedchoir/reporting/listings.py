"""What there is: methods, scenarios, models, public sets and their options, as tables for the terminal."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedchoir import methods, models
from fedchoir.data.image.datasets import SOURCES, found
from fedchoir.data.image.files import data_root
from fedchoir.data.public import PUBLIC
from fedchoir.data.registry import SCENARIOS
from fedchoir.experiments.config import Experiment, make_plan
from fedchoir.experiments.profiles import Profile
from fedchoir.methods.base import Method


def listing(what: str) -> RenderableType:
    """The table of one kind of thing."""
    return {"methods": _methods, "scenarios": _scenarios, "models": _models, "public": _public}[what]()


def _table(title: str, *columns: str) -> Table:
    """A table that reads well at 80 columns: names are never broken, texts wrap between words."""
    table = Table(
        title=title, title_justify="left", title_style="bold", header_style="dim", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for number, column in enumerate(columns):
        table.add_column(
            column,
            no_wrap=number == 0,
            overflow="fold",
            style="bold" if number == 0 else "",
            max_width={"paper": 24}.get(column),
        )
    return table


KINDS: tuple[tuple[str, Callable[[type[Method]], bool]], ...] = (
    ("methods without labels (self-supervised)", lambda cls: cls.evaluate is not Method.evaluate),
    ("methods for different architectures, with a public set", lambda cls: cls.heterogeneous and cls.needs_public),
    ("methods for different architectures, without a public set", lambda cls: cls.heterogeneous),
    ("methods for one architecture", lambda cls: True),
)


def _methods() -> RenderableType:
    """Methods by what they need; each under the first heading that fits."""
    tables = {title: _table(title, "name", "what it does", "paper") for title, _ in KINDS}
    for name, cls in methods.registry().items():
        title = next(title for title, fits in KINDS if fits(cls))
        tables[title].add_row(name, cls.title, f"[dim]{cls.paper or '–'}[/]")
    filled = [tables[title] for title, _ in (*KINDS[1:], KINDS[0]) if tables[title].row_count]
    return Group(*filled, Text("options of one: fedchoir list --options NAME\n", style="dim"))


def _scenarios() -> Table:
    table = _table("scenarios (or a folder with one sub-folder or .npz per client)", "name", "what it is", "models")
    for name, known in SCENARIOS.items():
        table.add_row(name, known.title, f"[dim]{', '.join(known.models)}[/]")
    return table


def _models() -> Table:
    table = _table("models (NAME@WIDTH narrows one; timm:NAME takes any of timm's)", "name", "what it is")
    for name in models.names():
        table.add_row(name, models.describe(name))
    return table


def _public() -> Table:
    table = _table("public sets (or a folder of images, or an .npz)", "name", "what it is")
    for name, text in PUBLIC.items():
        table.add_row(name, text)
    return table


def effective_options(method: str, scenario: str, profile: str) -> dict[str, Any]:
    """The options that a run without ``--set`` uses, the method's own first."""
    values: dict[str, Any] = {"method": method, "scenario": scenario, "profile": profile}
    params = make_plan(Experiment(**values)).params
    own = set(methods.get(method).Params.__annotations__)
    return {key: getattr(params, key) for key in sorted(type(params).model_fields, key=lambda key: key not in own)}


def options_table(name: str, scenario: str = "digits-lite", profile: str = "fixed") -> Table:
    """The options of a method with the values that a run uses, and those of the other profiles where they differ."""
    table = _table(
        f"options of {name} on {scenario}, profile {profile} (--set option=value)", "option", "value", "meaning"
    )
    cls = methods.get(name)
    own = set(cls.Params.__annotations__)
    others = {p: effective_options(name, scenario, p) for p in get_args(Profile) if p != profile}
    for key, value in effective_options(name, scenario, profile).items():
        told = "".join(f" · [cyan]{p}: {options[key]}[/]" for p, options in others.items() if options[key] != value)
        meaning = (cls.Params.model_fields[key].description or "") + told
        table.add_row(
            key if key in own else f"[not bold]{key}[/]", str(value) if value not in (None, "") else "–", meaning
        )
    return table


def data_table(root: Path | None) -> Table:
    """Which data sets lie under the data root."""
    folder = data_root(root)
    table = _table(f"data sets under {folder}", "name", "found", "how to get it")
    for name, source in SOURCES.items():
        where = found(name, root)
        table.add_row(name, f"[green]{where}[/]" if where else "[red]no[/]", "" if where else source.get)
    return table
