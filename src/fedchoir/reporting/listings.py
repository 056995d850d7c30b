"""What there is: methods, scenarios, models, public sets and their options, as tables for the terminal."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fedchoir import methods, models
from fedchoir.data.availability import data_sets
from fedchoir.data.image.files import data_root
from fedchoir.data.modalities import READERS, reader
from fedchoir.data.registry import SCENARIOS
from fedchoir.experiments.config import Experiment, make_plan
from fedchoir.experiments.profiles import Profile, not_given
from fedchoir.methods.base import Method
from fedchoir.models.check import check_model, parse_inputs
from fedchoir.utils.devices import pick_device
from fedchoir.utils.sizes import readable_bytes


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
    ("methods without labels (self-supervised)", lambda cls: not cls.uses_labels),
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
    title = "scenarios (or a folder with one sub-folder or file per client, or FILE.py:FUNCTION)"
    table = _table(title, "name", "what it is", "models")
    for name, known in SCENARIOS.items():
        table.add_row(name, known.title, f"[dim]{', '.join(known.models)}[/]")
    return table


def _models() -> Table:
    title = "models (NAME@WIDTH narrows one; timm:NAME takes any of timm's; FILE.py:FACTORY your own)"
    table = _table(title, "name", "for", "what it is")
    for modality in READERS:
        table.add_section()
        for name in models.names(modality):
            table.add_row(name, modality, models.describe(name, modality))
    return table


def model_table(name: str, classes: int, inputs: str, device: str) -> Table:
    """What a model has and needs, measured."""
    found = check_model(name, classes, parse_inputs(inputs), device=pick_device(device))
    table = _table(f"model {escape(name)} for {found.inputs}, {classes} classes", "", "")
    table.show_header = False
    trained = "" if found.trained == found.parameters else f", {found.trained:,} of them trained"
    table.add_row("parameters", f"{found.parameters:,}{trained}")
    table.add_row("features", str(found.feature_dim))
    table.add_row("feature map", "×".join(map(str, found.map_shape)) or "none: fbcl and Grad-CAM need one")
    table.add_row("memory", f"{readable_bytes(found.weight_bytes)} of weights, "
                  f"{readable_bytes(int(found.activation_bytes))} per sample in a training step")  # fmt: skip
    table.add_row("training step", f"{found.step_seconds * 1000:.2g} ms for {found.batch} samples")
    for note in found.notes:
        table.add_row("note", escape(note))
    return table


def _public() -> Table:
    title = "public sets (or a folder of images, an .npz, a table, a file of texts, or FILE.py:FUNCTION)"
    table = _table(title, "name", "for", "what it is")
    for modality in READERS:
        for name, text in reader(modality).PUBLIC.items():
            table.add_row(name, modality, text)
    table.add_row(methods.CONDENSED, "all", "the clients' condensed samples, made before the first round")
    return table


def effective_options(method: str, scenario: str, profile: str, public: str | None = None) -> dict[str, Any]:
    """The options that a run without ``--set`` uses, the method's own first."""
    values: dict[str, Any] = {"method": method, "scenario": scenario, "profile": profile, "public": public}
    params = make_plan(Experiment(**values)).params
    own = set(methods.get(method).Params.__annotations__)
    return {key: getattr(params, key) for key in sorted(type(params).model_fields, key=lambda key: key not in own)}


def options_table(name: str, scenario: str = "digits-lite", profile: str = "fixed", public: str | None = None) -> Table:
    """The options of a method with the values that a run uses, and those of the other profiles where they differ."""
    where = f"{name} on {scenario}{f', public set {public}' if public else ''}, profile {profile}"
    table = _table(f"options of {where} (--set option=value)", "option", "value", "meaning")
    cls = methods.get(name, public)
    own = set(methods.get(name).Params.__annotations__)
    others = {p: effective_options(name, scenario, p, public) for p in get_args(Profile) if p != profile}
    for key, value in effective_options(name, scenario, profile, public).items():
        told = "".join(f" · [cyan]{p}: {options[key]}[/]" for p, options in others.items() if options[key] != value)
        meaning = (cls.Params.model_fields[key].description or "") + told
        table.add_row(
            key if key in own else f"[not bold]{key}[/]", str(value) if value not in (None, "") else "–", meaning
        )
    return table


def not_given_lines(names: Iterable[str]) -> list[str]:
    """What the papers of some methods do not say, and what we run instead; a line each.

    >>> not_given_lines(["solo", "fccl"])
    ['not given in the paper: fccl, pretraining batch: the local batch']
    """
    return [
        f"not given in the paper: {name}, {what}: {ours}" for name in names for what, ours in not_given(name).items()
    ]


def data_table(root: Path | None) -> Table:
    """Which data sets lie under the data root."""
    folder = data_root(root)
    table = _table(f"data sets under {folder}", "name", "found", "how to get it")
    for known in data_sets(root):
        where = known.place
        table.add_row(known.name, f"[green]{where}[/]" if where else "[red]no[/]", "" if where else known.get)
    return table
