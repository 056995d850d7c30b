"""The root command: help, version, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer.main

from fedchoir.cli import app as cli
from fedchoir.utils.errors import QuorumError, StorageError, UsageError, WorkerError

COMMANDS = (
    "analyse compare data demo doctor export federation keys list node predict report reproduce run serve sweep ui "
    "warmup"
)


def test_all_commands_are_there_and_documented() -> None:
    commands = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    assert sorted(commands) == COMMANDS.split()
    assert all(command.get_short_help_str() for command in commands.values())


def test_help_shows_examples(fedchoir: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = fedchoir("run", "--help")
    assert code == 0
    assert "fedchoir run fccl+" in out
    for option in ("--scenario", "--public", "--models", "--profile", "--set", "--resume", "--data-root"):
        assert option in out


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (UsageError("rounds = 0 is not possible"), 2, "fedchoir: rounds = 0 is not possible\n"),
        (QuorumError("1 of 4 clients answered"), 3, "1 of 4 clients answered. The last checkpoint is intact"),
        (StorageError("disk full"), 4, "disk full. The last checkpoint is intact: --resume continues"),
        (WorkerError("the process on cuda:1 died"), 5, "the process on cuda:1 died. The last checkpoint"),
        (KeyboardInterrupt(), 130, "interrupted. The last checkpoint is intact"),
    ],
)
def test_errors_end_with_one_line_and_a_code(
    error: BaseException, code: int, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == code
    err = capsys.readouterr().err
    assert text in err
    assert err.count("\n") == 1


def test_a_plugin_that_is_no_file_is_refused(fedchoir: Callable[..., tuple[int, str, str]]) -> None:
    code, _, err = fedchoir("--plugin", "nowhere.py", "list")
    assert code == 2
    assert "--plugin nowhere.py is not a file" in err


def test_the_installed_command_works_in_any_folder(tmp_path: Path) -> None:
    command = Path(sys.executable).parent / "fedchoir"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [command, "--version"], cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0
    assert done.stdout.startswith("fedchoir ")
