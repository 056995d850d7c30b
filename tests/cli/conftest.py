"""The command line in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from fedchoir.cli.app import main

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fedchoir(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command; returns its exit code, its output and its errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedchoir", *arguments])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
