"""Flower's programs as child processes; a shell script stands for the program."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from fedchoir.deploy import flower_process
from fedchoir.deploy.flower_process import FlowerProcess


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The script ``flower-test``, in the folder of the Python interpreter."""
    script = tmp_path / "bin" / "flower-test"
    script.parent.mkdir()
    script.write_text('#!/bin/sh\necho started $FLWR_HOME $FLWR_TELEMETRY_ENABLED "$@"\nexec sleep 60\n')
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script.with_name("python")))
    return script


def wait_for(text: str, log: Path) -> str:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if log.exists() and text in (found := log.read_text()):
            return found
        time.sleep(0.02)
    raise AssertionError(f"{text!r} did not appear in {log}")


def test_start_and_stop(program: Path, tmp_path: Path) -> None:
    process = FlowerProcess("flower-test", tmp_path / "work")
    process.stop()  # nothing to stop yet
    process.start("--port", "8000")
    try:
        line = wait_for("8000", process.log)
        assert f"started {tmp_path / 'work' / 'flwr'} 0 --isolation process" in line
        assert process.log == tmp_path / "work" / "test.log"
        assert (tmp_path / "work" / "superexec.secret").stat().st_mode & 0o777 == 0o600
        assert process.exit_code() is None
    finally:
        process.stop()
    assert process.exit_code() == -15
    process.stop()


def test_a_program_that_ignores_sigterm_is_killed(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.write_text("#!/bin/sh\ntrap '' TERM\necho ready\nwhile :; do sleep 0.1; done\n")
    monkeypatch.setattr(flower_process, "STOP_SECONDS", 0.2)
    process = FlowerProcess("flower-test", tmp_path / "work")
    process.start()
    wait_for("ready", process.log)
    process.stop()
    assert process.exit_code() == -9


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("", "no output"),
        ("INFO : starting\nINFO : ready\n", "INFO : ready"),
        ("INFO : one\n\x1b[91mERROR\x1b[0m :     port in use\nINFO : done\n", "port in use"),
        ("ERROR : first\nERROR : exit code 1\n  the key is\n  not registered\n\nFor more, see\n", None),
    ],
)
def test_the_last_error_is_one_line(log: str, expected: str | None, tmp_path: Path) -> None:
    process = FlowerProcess("flower-test", tmp_path)
    process.log.write_text(log)
    assert process.last_error() == (expected or "exit code 1 the key is not registered")


def test_the_environment_is_that_of_this_installation(tmp_path: Path) -> None:
    values = flower_process.environment(tmp_path)
    assert values["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert (values["FLWR_HOME"], values["FLWR_DISABLE_UPDATE_CHECK"]) == (str(tmp_path), "1")
