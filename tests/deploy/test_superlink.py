"""How a SuperLink is started; a script stands for the program. (The real one runs in tests/deploy_e2e.)"""

from __future__ import annotations

import sys
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from flwr.cli.build import build_fab_from_files

from fedchoir.deploy import superlink
from fedchoir.deploy.config import FederationFile
from fedchoir.deploy.keys import make_server
from fedchoir.deploy.superlink import SuperLinkProcess
from fedchoir.utils.errors import UsageError


def federation(folder: Path, **changes: Any) -> FederationFile:
    keys = {"ca": folder / "ca.crt", "certificate": folder / "server.crt", "key": folder / "server.key"}
    values = {"method": "fedavg", "sites": [{"name": "a"}, {"name": "b"}], "address": "127.0.0.1:9", **keys, **changes}
    return FederationFile.model_validate(values)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    script = tmp_path / "bin" / "python"
    script.parent.mkdir()
    script.write_text('#!/bin/sh\necho "$@" > "$FLWR_HOME.arguments"\necho "ERROR : port in use"\nexit 1\n')
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    return script


def test_missing_certificates_are_named(program: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match=r"ca\.crt is missing: fedchoir keys --host HOST creates it"),
        SuperLinkProcess.running(federation(tmp_path), tmp_path / "work"),
    ):
        pass
    assert not (tmp_path / "work" / "superlink.log").exists()


def test_a_superlink_that_does_not_start_is_reported(program: Path, tmp_path: Path) -> None:
    make_server(tmp_path, ["127.0.0.1"])
    with (
        pytest.raises(UsageError, match=r"the SuperLink did not start: port in use \(full log: .*superlink\.log\)"),
        SuperLinkProcess.running(federation(tmp_path), tmp_path / "work"),
    ):
        pass
    options = (tmp_path / "work" / "flwr.arguments").read_text()
    assert "--enable-supernode-auth" in options
    assert f"--ssl-certfile {tmp_path / 'server.crt'}" in options
    assert "--disable-runtime-dependency-installation --host 127.0.0.1 --port 9" in options
    assert "--insecure" not in options


def test_a_superlink_that_does_not_answer_is_stopped(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(superlink, "START_SECONDS", 0.5)
    with (
        pytest.raises(UsageError, match=r"did not answer on 127\.0\.0\.1:9"),
        SuperLinkProcess.running(federation(tmp_path, insecure=True), tmp_path / "work") as link,
    ):
        assert link is None  # not reached


def test_the_app_bundle_has_no_code() -> None:
    content, _ = build_fab_from_files({"pyproject.toml": superlink.APP.encode()})
    names = zipfile.ZipFile(BytesIO(content)).namelist()
    assert not [name for name in names if name.endswith(".py")]
