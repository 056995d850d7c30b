"""Pages made from the code when the site is built: every method, the shared options, the commands."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic.fields import FieldInfo

from fedchoir import losses, methods
from fedchoir.cli.app import app
from fedchoir.core.settings import Settings
from fedchoir.experiments.profiles import profile_options, profile_sections
from fedchoir.methods.base import Method

KINDS = (
    ("For different architectures, with a public set", lambda cls: cls.heterogeneous and cls.needs_public),
    ("For different architectures, without a public set", lambda cls: cls.heterogeneous),
    ("For one architecture", lambda cls: True),
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Leave out of the navigation what is not written yet; put every method into it."""
    pages = dict.fromkeys(("options.md", "commands.md"), True)
    folder = Path(config.docs_dir)
    nav: list[dict[str, Any]] = []
    for entry in config.nav or []:
        ((title, target),) = entry.items()
        if title == "Methods":
            nav.append({title: ["methods/index.md", *({n: f"methods/{slug(n)}.md"} for n in methods.registry())]})
        elif target in pages or (folder / target).is_file():
            nav.append(entry)
    config.nav = nav
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    made = {"methods/index.md": overview(), "options.md": options_page(), "commands.md": commands_page()}
    made |= {f"methods/{slug(name)}.md": method_page(name, cls) for name, cls in methods.registry().items()}
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_content(html: str, **_: Any) -> str:
    """Cells that hold a number and nothing else, such as ``50.09 ± 1.53`` or ``78.1 MiB``, stay on one line."""
    number = r"(?:<(?:strong|u)>)?[-+−±–\d.() ]+(?:[KMG]?i?B)?(?:</(?:strong|u)>)?"
    return re.sub(rf"<td>(?={number}</td>)", '<td class="number">', html)


def slug(name: str) -> str:
    return name.replace("+", "-plus")


# -- methods -----------------------------------------------------------------------------------------------------------


def overview() -> str:
    rows = {title: [] for title, _ in KINDS}
    for name, cls in methods.registry().items():
        title = next(title for title, fits in KINDS if fits(cls))
        rows[title].append(f"| [`{name}`]({slug(name)}.md) | {cell(cls.title)} | {cell(cls.paper or '–')} |")
    parts = [f"## {title}\n\n| method | what it does | paper |\n|---|---|---|\n" + "\n".join(lines)
             for title, lines in rows.items() if lines]  # fmt: skip
    lead = (
        "One file a method, in `src/fedchoir/methods/`. These pages are made from that code: what a round does, what "
        "crosses the wire, the equations of the losses, and every option.\n\n"
    )
    return "# Methods\n\n" + lead + "\n\n".join(parts) + "\n"


def method_page(name: str, cls: type[Method]) -> str:
    module = inspect.getdoc(inspect.getmodule(cls)) or ""
    facts = [
        "different architectures" if cls.heterogeneous else "one architecture for all",
        "needs a public set" if cls.needs_public else "no public set",
    ]
    parts = [
        f"# {name}",
        f"{text(cls.title[0].upper() + cls.title[1:])}.",
        f"*{text(' '.join(module.split()))}*" if cls.paper else "",
        f"**{' · '.join(facts)}** · `fedchoir run {name}` · `{source_of(cls)}`",
        text(inspect.getdoc(cls) or ""),
        f"## A round\n\n```python\n{round_source(cls)}\n```",
        loss_sources(cls),
        wire(cls),
        equations(cls),
        own_options(name, cls),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def source_of(cls: type) -> str:
    module = inspect.getmodule(cls)
    return "src/" + module.__name__.replace(".", "/") + ".py" if module else ""


def round_source(cls: type[Method]) -> str:
    """The code of ``round``, and of those of the family that it goes on with."""
    parts = []
    for base in cls.__mro__:
        if "round" not in vars(base):
            continue
        code = source(vars(base)["round"])
        parts.append(code if base is cls else f"# as in {getattr(base, 'name', base.__name__)}\n{code}")
        if "super().round" not in code:
            break
    return "\n\n".join(parts)


def loss_sources(cls: type[Method]) -> str:
    """The losses as the method puts them together, where it does so itself."""
    own = [f for name, f in vars(cls).items() if name.endswith("_loss") and inspect.isfunction(f)]
    if not own:
        return ""
    return "## Its losses\n\n```python\n" + "\n\n".join(source(function) for function in own) + "\n```"


def source(function: Any) -> str:
    return inspect.cleandoc("\n" + inspect.getsource(function))


def wire(cls: type[Method]) -> str:
    """What clients send, as they declare it."""
    said = {
        name: function.__sends__
        for name, function in inspect.getmembers(cls, inspect.isfunction)
        if hasattr(function, "__says__") and reachable(cls, name)
    }
    rows = [f"| `{name}` | `{key}` | `{shape}` |" for name, told in said.items() for key, shape in told.items()]
    if not rows:
        return "## What crosses the wire\n\nNothing."
    head = "## What a client may send\n\nAnything else cannot leave it; shapes, dtypes and finiteness are checked.\n\n"
    return head + "| step | name | shape |\n|---|---|---|\n" + "\n".join(rows)


def reachable(cls: type[Method], name: str) -> bool:
    """Whether some code of the family mentions the step; bases bring steps that a method may not use."""
    code = "".join(inspect.getsource(base) for base in cls.__mro__ if issubclass(base, Method))
    used = len(re.findall(rf"self\.{name}\b", code)) > 0
    averages = {"upload", "download"}
    return used and (name not in averages or "self.average()" in code.replace("``yield from self.average()``", ""))


def equations(cls: type[Method]) -> str:
    """The losses that the family's modules import, each with its equation."""
    code = "\n".join(inspect.getsource(m) for base in cls.__mro__ if (m := inspect.getmodule(base)) and
                     m.__name__.startswith("fedchoir.methods."))  # fmt: skip
    names = [n for found in re.findall(r"from fedchoir\.losses import \(?([^)\n]*(?:\n[^)]*)?)", code)
             for n in re.findall(r"\w+", found)]  # fmt: skip
    known = [name for name in dict.fromkeys(names) if name in losses.__all__ and re.search(rf"\b{name}\(", code)]
    for name in known:  # and those that their equations speak of
        told = dict.fromkeys(re.findall(r"`(\w+)`", inspect.getdoc(getattr(losses, name)) or ""))
        known += [other for other in told if other in losses.__all__ and other not in known]
    if not known:
        return ""
    return "## Equations\n\n" + "\n\n".join(
        f"### `losses.{name}`\n\n{equation(getattr(losses, name))}" for name in known
    )


def equation(function: Any) -> str:
    """A loss's docstring up to its arguments; its indented formulas are shown as they are."""
    doc = inspect.getdoc(function) or ""
    head = re.split(r"\n\s*(?:Args|Returns|Raises):|\n>>>", doc)[0].rstrip()
    lines = [line if line.startswith("    ") else text(line) for line in head.splitlines()]
    return "\n".join(lines)


# -- options and commands ----------------------------------------------------------------------------------------------


def own_options(name: str, cls: type[Method]) -> str:
    shared = Settings.model_fields
    own = {k: f for k, f in cls.Params.model_fields.items() if k not in shared}
    changed = {k: f for k, f in cls.Params.model_fields.items() if k in shared and f.default != shared[k].default}
    profiles = {profile: profile_options(cls, profile) for profile in ("paper", "official")}
    others = {k: cls.Params.model_fields[k] for p in profiles.values() for k in p if k not in own and k not in changed}
    parts = [f"## Options\n\n`--set key=value`, beside the [options of all methods](../options.md); `fedchoir list "
             f"--options {name}` shows them too."]  # fmt: skip
    fields = own | changed | others
    if fields:
        rows = [
            f"| `{key}` | {shown(field)} | {' | '.join(code(p[key]) if key in p else '' for p in profiles.values())} | "
            f"{cell(field.description or '')} |"
            for key, field in fields.items()
        ]
        parts.append("| option | default | paper | official | meaning |\n|---|---|---|---|---|\n" + "\n".join(rows))
    scenarios = dict(scenario_profiles(cls))
    for title, values in scenarios.items():
        parts.append(f"Profile {title}: {', '.join(f'`{k}={v}`' for k, v in values.items())}.")
    return "\n\n".join(parts)


def scenario_profiles(cls: type[Method]) -> Iterator[tuple[str, dict[str, Any]]]:
    for key in dict.fromkeys(key for key, _ in profile_sections(cls) if ":" in key):
        profile, _, scenarios = key.partition(":")
        for scenario in scenarios.split(","):
            general = profile_options(cls, profile)
            own = {k: v for k, v in profile_options(cls, profile, scenario).items() if general.get(k) != v}
            yield f"`{profile}` on `{scenario}`", own


def options_page() -> str:
    rows = [f"| `{k}` | {shown(f)} | {cell(f.description or '')} |" for k, f in Settings.model_fields.items()]
    lead = "Every method understands these, by `--set key=value` or under `[settings]` in a TOML file. Scenarios and profiles change some defaults; `experiment.toml` and `result.json` of a run hold what was used.\n\n"  # noqa: E501
    return (
        "# Options of all methods\n\n"
        + lead
        + "| option | default | meaning |\n|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )


def commands_page() -> str:
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group) or hasattr(group, "commands")
    return "# Commands\n\n" + "\n\n".join(command_parts(group, "fedchoir")) + "\n"


def command_parts(group: Any, path: str) -> Iterator[str]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from command_parts(command, f"{path} {name}")
            continue
        rows = []
        for parameter in command.params:
            if parameter.name == "help":
                continue
            option = parameter.param_type_name == "option"
            label = ", ".join(map(code, parameter.opts)) if option else code(parameter.human_readable_name)
            default = parameter.default
            value = "" if default is None or callable(default) or default in (False, ()) else code(default)
            rows.append(f"| {label} | {value} | {cell(getattr(parameter, 'help', None) or '')} |")
        table = "| | default | |\n|---|---|---|\n" + "\n".join(rows) if rows else ""
        yield f"## `{path} {name}`\n\n{text((command.help or '').strip())}\n\n{table}"


# -- text --------------------------------------------------------------------------------------------------------------


def shown(field: FieldInfo) -> str:
    """A default, or ``required``; nothing for None, where the description says what happens."""
    return "" if field.default is None else code(field.default)


def code(value: Any) -> str:
    value = getattr(value, "value", value)
    plain = ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    return f"`{plain}`".replace("|", "\\|")  # a bar would end a table's cell


def text(value: str) -> str:
    """Plain text in Markdown: nothing in it becomes markup but `code`."""
    parts = re.split(r"(`+[^`]*`+)", value)
    return "".join(
        p.replace("``", "`") if p.startswith("`") else re.sub(r"([*_<>\[\]{}#|\\])", r"\\\1", p) for p in parts
    )


def cell(value: str) -> str:
    return text(" ".join(value.split()))
