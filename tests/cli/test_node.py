"""fedchoir node init and node log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tomli_w
from typer.testing import CliRunner

from fedchoir.cli import node as module
from fedchoir.cli.app import app
from fedchoir.deploy.audit import AuditLog
from fedchoir.deploy.policy import sha256_of
from fedchoir.deploy.policy_file import read_policy
from fedchoir.utils.errors import UsageError


def call(*arguments: str, answers: str = "") -> str:
    done = CliRunner().invoke(app, ["node", *arguments], input=answers)
    if done.exception is not None:
        raise done.exception
    return done.output


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    sites = [{"name": n, "key": f"{n}.pub"} for n in "abc"]
    path = tmp_path / "federation.toml"
    path.write_text(tomli_w.dumps({"method": "fedmd", "public": "photos", "sites": sites, "settings": {"dp_noise": 1}}))
    return path


def test_init_writes_a_policy_from_options(federation: Path) -> None:
    text = call(
        "init", "--yes", "--federation", "federation.toml", "--max-epsilon", "8", "--hours", "22:00-06:00",
        "--metrics", "no", "--min-sites", "3", "--max-runs", "2", "--max-parameters", "1000000",
        "--out", "site/policy.toml",
    )  # fmt: skip
    assert "this site has agreed to" in text
    assert "fedmd, 10 rounds with a, b, c" in text
    policy = read_policy(Path("site/policy.toml"))
    assert policy.federation == federation
    assert policy.federation_sha256 == sha256_of(federation)
    assert (policy.max_epsilon, policy.hours, policy.metrics) == (8.0, "22:00-06:00", False)
    assert (policy.min_sites, policy.max_parameters, policy.max_runs) == (3, 1_000_000, 2)
    policy.check()
    federation.write_text(federation.read_text() + "# changed\n")
    with pytest.raises(UsageError, match="has changed since it was agreed to"):
        read_policy(Path("site/policy.toml")).check()


def test_a_policy_finds_its_files_from_any_folder(
    federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "public.npz").write_bytes(b"")
    call("init", "--yes", "--federation", "federation.toml", "--public", "public.npz", "--out", "site/policy.toml")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    policy = read_policy(tmp_path / "site/policy.toml")
    assert (policy.federation, policy.public) == (federation, str(tmp_path / "public.npz"))


def test_init_asks_for_what_was_not_given(federation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_interactive", lambda: True)
    call("init", "--max-epsilon", "4", answers="federation.toml\n\nnone\n08:00-18:00\n")
    policy = read_policy(Path("policy.toml"))
    assert (policy.federation, policy.public) == (federation, None)
    assert (policy.hours, policy.max_epsilon, policy.max_runs) == ("08:00-18:00", 4.0, "none")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--yes"], "give --federation FILE"),
        (["--yes", "--federation", "lost.toml"], "cannot read lost.toml"),
        (["--yes", "--federation", "federation.toml", "--min-sites", "9"], "3 sites; this site takes part with"),
        (["--yes", "--federation", "federation.toml", "--out", "federation.toml"], "federation.toml exists"),
    ],
)
def test_init_writes_nothing_that_would_not_work(options: list[str], why: str, federation: Path) -> None:
    with pytest.raises(UsageError) as error:
        call("init", *options)
    assert why in str(error.value)
    assert not Path("policy.toml").exists()


def test_log_shows_what_happened(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "state" / "audit.jsonl")
    log.asked(2, ["local_update", "share"], 2048, "ab")
    log.record("refused", "refused: no")
    lines = call("log", "--work", str(tmp_path)).splitlines()
    assert lines[0].endswith("  round 3: the server asks for local_update, share (2.0 KiB received)")
    assert call("log", "--work", str(tmp_path), "--last", "1").splitlines() == lines[1:]
    first = json.loads(call("log", "--work", str(tmp_path), "--json").splitlines()[0])
    assert (first["kind"], first["round"], first["actions"]) == ("asked", 2, ["local_update", "share"])
    with pytest.raises(UsageError, match="there is no such file; --work is the folder"):
        call("log", "--work", str(tmp_path / "other"))


def test_a_node_needs_a_server_data_and_a_model() -> None:
    with pytest.raises(UsageError, match="--server is missing"):
        call()
    with pytest.raises(UsageError, match="--model is missing"):
        call("--server", "x:1", "--data", ".")
