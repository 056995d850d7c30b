"""The systemd units: what they start is a command of ours with options that it has, and systemd can read them."""

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
UNITS = sorted(FOLDER.glob("*.service"))


def settings(unit: Path) -> dict[str, list[str]]:
    """``Section.Key`` → values. (A unit may name a key several times, so it is no INI file.)"""
    found: dict[str, list[str]] = {}
    section = ""
    for line in unit.read_text().replace("\\\n", " ").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(f"{section}.{key.strip()}", []).append(value.strip())
    return found


def test_both_are_there() -> None:
    assert [unit.name for unit in UNITS] == ["fedchoir-node.service", "fedchoir-server.service"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_start_a_command_with_options_that_it_has(unit: Path) -> None:
    (line,) = settings(unit)["Service.ExecStart"]
    program, name, *arguments = shlex.split(line)
    assert program == "/opt/fedchoir/bin/fedchoir"  # where docs/deploy.md installs it
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    context = command.make_context(name, arguments, resilient_parsing=False)  # raises on an unknown or missing option
    assert context.params["server" if name == "node" else "file"] is not None


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_may_write_only_where_the_run_is(unit: Path) -> None:
    told = settings(unit)
    assert told["Service.ProtectSystem"] == ["strict"]
    assert told["Service.ReadWritePaths"] == told["Service.WorkingDirectory"] == ["/srv/fedchoir"]
    assert told["Service.UMask"] == ["0077"]
    assert told["Service.NoNewPrivileges"] == ["yes"]


def test_a_server_that_says_its_file_is_wrong_is_not_started_again() -> None:
    told = settings(FOLDER / "fedchoir-server.service")
    assert (told["Service.Restart"], told["Service.RestartPreventExitStatus"]) == (["on-failure"], ["2"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed here")
def test_systemd_can_read_them(tmp_path: Path) -> None:
    """``systemd-analyze verify``, with a program that is there in the place of the one in /opt."""
    for unit in UNITS:
        text = unit.read_text().replace("/opt/fedchoir/bin/fedchoir", sys.executable)
        (tmp_path / unit.name).write_text(text)
    paths = [str(tmp_path / unit.name) for unit in UNITS]
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *paths], capture_output=True, text=True)
    ours = [line for line in done.stderr.splitlines() if "fedchoir" in line]
    assert ours == []
