"""The systemd units in deploy/systemd start fedchoir commands with valid options, and systemd accepts them."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from fedchoir.cli.app import app

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"


def settings(unit: Path) -> dict[str, list[str]]:
    """``Section.Key`` → values. (A unit may repeat a key, so configparser cannot read it.)"""
    found: dict[str, list[str]] = {}
    section = ""
    for line in unit.read_text().replace("\\\n", " ").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(f"{section}.{key.strip()}", []).append(value.strip())
    return found


@pytest.mark.parametrize("unit", ["fedchoir-node", "fedchoir-server"])
def test_units_start_a_command_with_valid_options(unit: str) -> None:
    (line,) = settings(FOLDER / f"{unit}.service")["Service.ExecStart"]
    program, name, *arguments = shlex.split(line)
    assert program == "/opt/fedchoir/bin/fedchoir"  # where docs/deploy.md installs it
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    context = command.make_context(name, arguments, resilient_parsing=False)  # raises on an unknown or missing option
    assert context.params["server" if name == "node" else "file"] is not None


@pytest.mark.parametrize("unit", ["fedchoir-node", "fedchoir-server"])
def test_units_may_write_only_to_the_folder_of_the_run(unit: str) -> None:
    values = settings(FOLDER / f"{unit}.service")
    assert values["Service.ProtectSystem"] == ["strict"]
    assert values["Service.ReadWritePaths"] == values["Service.WorkingDirectory"] == ["/srv/fedchoir"]
    assert values["Service.UMask"] == ["0077"]
    assert values["Service.NoNewPrivileges"] == ["yes"]


def test_the_server_is_not_restarted_after_a_mistake_in_its_file() -> None:
    values = settings(FOLDER / "fedchoir-server.service")
    assert (values["Service.Restart"], values["Service.RestartPreventExitStatus"]) == (["on-failure"], ["2"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """``systemd-analyze verify``, with an existing program in place of the one in /opt."""
    units = sorted(FOLDER.glob("*.service"))
    for unit in units:
        text = unit.read_text().replace("/opt/fedchoir/bin/fedchoir", sys.executable)
        (tmp_path / unit.name).write_text(text)
    paths = [str(tmp_path / unit.name) for unit in units]
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *paths], capture_output=True, text=True)
    errors = [line for line in done.stderr.splitlines() if "fedchoir" in line]
    assert errors == []
