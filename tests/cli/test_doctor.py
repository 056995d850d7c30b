"""doctor: what it finds, and its exit code."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedchoir.cli import doctor
from fedchoir.cli.app import app


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
