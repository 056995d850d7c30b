"""Generates pages from the code when the site is built: one per method, the options of all methods, the commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import click
import typer.main
from _method_pages import method_page, overview, slug
from _text import cell, code, shown, text
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from fedchoir import methods
from fedchoir.cli.app import app
from fedchoir.core.settings import Settings


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add every method to the navigation."""
    pages = ["methods/index.md", *({name: f"methods/{slug(name)}.md"} for name in methods.registry())]
    config.nav = [{"Methods": pages} if "Methods" in entry else entry for entry in config.nav or []]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    made = {"methods/index.md": overview(), "options.md": options_page(), "commands.md": commands_page()}
    made |= {f"methods/{slug(name)}.md": method_page(name, cls) for name, cls in methods.registry().items()}
    for path, page in made.items():
        files.append(File.generated(config, path, content=page))
    return files


def on_page_content(html: str, **_: Any) -> str:
    """Cells that hold a number and nothing else, such as ``50.09 ± 1.53`` or ``78.1 MiB``, stay on one line."""
    number = r"(?:<(?:strong|u)>)?[-+−±–\d.() ]+(?:[KMG]?i?B)?(?:</(?:strong|u)>)?"
    return re.sub(rf"<td>(?={number}</td>)", '<td class="number">', html)


def options_page() -> str:
    rows = [f"| `{k}` | {shown(f.default)} | {cell(f.description or '')} |" for k, f in Settings.model_fields.items()]
    head = (
        "# Options of all methods\n\nEvery method has these options; set them with `--set option=value` or under "
        "`[settings]` in a TOML file. Scenarios, methods and profiles change some defaults: `fedchoir list --options "
        "METHOD --scenario S --profile P` shows the values of a run, and its `result.json` stores them.\n\n"
    )
    return head + "| option | default | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def commands_page() -> str:
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group) or hasattr(group, "commands")
    return "# Commands\n\n" + "\n\n".join(command_blocks(group, "fedchoir")) + "\n"


def command_blocks(group: Any, path: str) -> Iterator[str]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from command_blocks(command, f"{path} {name}")
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
