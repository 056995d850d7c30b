"""The demo: two tables, a report and what to do next."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedchoir.cli import demo
from fedchoir.cli.app import app

TINY = {"private": 20, "public_size": 32, "local_epochs": 1}


def test_demo_ends_with_tables_report_and_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "HOSPITALS", {"solo": {"local_epochs": 1}, "fedmd": {"public_size": 64}})
    monkeypatch.setattr(demo, "DIGITS", {"solo": TINY, "choir-v1": {**TINY, "shared_model": "simple_cnn@4"}})
    monkeypatch.setattr(demo, "DIGITS_MODELS", ("simple_cnn@4",) * 3 + ("mlp",))
    monkeypatch.setattr(demo, "DIGITS_ROUNDS", 1)
    done = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "demo")])
    assert done.exit_code == 0, done.output
    first, _, second = done.output.partition("Four kinds of digits")
    assert "heart · 4 clients (logistic, mlp, res_mlp, ft_transformer) · 15 rounds" in first
    assert all(any(line.startswith(name) for line in first.splitlines()) for name in ("solo", "fedmd"))
    assert all(any(line.startswith(name) for line in second.splitlines()) for name in ("solo", "choir-v1"))
    assert (tmp_path / "demo" / "report.html").stat().st_size > 10_000
    assert done.output.rstrip().splitlines()[-1].startswith("next, with your own data: fedchoir run")
