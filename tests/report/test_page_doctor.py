"""What the terminal says: doctor, and lists that fit 80 columns."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fedchoir import methods
from fedchoir.cli import doctor
from fedchoir.cli.app import app
from fedchoir.reporting.listings import listing, options_table


def at_80(renderable: object) -> str:
    out = io.StringIO()
    Console(file=out, width=80).print(renderable)
    return out.getvalue()


@pytest.mark.parametrize("what", ["methods", "scenarios", "models", "public"])
def test_lists_fit_80_columns(what: str) -> None:
    text = at_80(listing(what))
    assert max(map(len, text.splitlines())) <= 80


def test_every_method_is_listed_whole_and_once() -> None:
    firsts = [line.split()[0] for line in at_80(listing("methods")).splitlines() if line.strip()]
    assert all(firsts.count(name) == 1 for name in methods.registry())


def test_options_are_never_broken() -> None:
    text = at_80(options_table("fccl+"))
    assert all(f" {name} " in text for name in methods.get("fccl+").Params.model_fields)


def test_doctor_finds_data_and_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "cifar10.npz").touch()
    findings = {finding.name: finding for finding in doctor.examine(tmp_path)}
    assert findings["digits-lite"].state == "good"
    assert findings["cifar10"].state == "good"
    assert findings["digits"].state == "absent"
    assert "mnist" in findings["digits"].text
    assert findings["cpu"].state == "good"


def test_doctor_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(app, ["doctor", "--data-root", str(tmp_path / "nowhere")])
    assert done.exit_code == 0, done.output
    assert "ready" in done.output
    monkeypatch.setattr(doctor, "installed", lambda package: "")
    done = CliRunner().invoke(app, ["doctor", "--data-root", str(tmp_path)])
    assert done.exit_code == 1
    assert "to put right: torch" in done.output
