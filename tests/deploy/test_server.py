"""The server before its first round: which sites fit, how long it waits, and who is revoked."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tomli_w

from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.deploy import server as module
from fedchoir.deploy.config import OWN, FederationFile, read_federation
from fedchoir.deploy.server import Revocations, check_site_info, register_sites, run_id, serve
from fedchoir.deploy.transport import SiteInfo
from fedchoir.engines.messages import MessageError
from fedchoir.experiments.config import Plan
from fedchoir.utils.errors import UsageError


def federation(**changes: Any) -> FederationFile:
    sites = [{"name": name, "model": "mlp"} for name in "ab"]
    values = {"method": "fedmd", "public": "photos", "sites": sites, "insecure": True, "wait": 0.01, **changes}
    return FederationFile.model_validate(values)


def info(name: str, **changes: Any) -> SiteInfo:
    values = {
        "name": name, "model": "mlp", "train": 48, "test": 32, "classes": ["cat", "dog"],
        "public": {"digest": "0123" * 16, "size": 40}, "versions": {}, "free": 2**30,
        "inputs": {"modality": "image", "shape": [3, 32, 32], "vocabulary": 0, "tensors": []},
    }  # fmt: skip
    return SiteInfo.model_validate({**values, **changes})


def test_a_site_that_fits_is_accepted() -> None:
    check_site_info(info("b"), federation(), {"a": info("a")})
    check_site_info(info("b", classes=["dog"]), federation(classes=("cat", "dog")), {"a": info("a")})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": 1}, "has 1 training samples; it needs at least 2"),
        ({"train": 10**9}, "states 1000000000 training samples, and max_train is 10000000"),
        ({"model": "resnet10"}, "has the architecture resnet10, but the file names mlp"),
        ({"classes": ["cat", "eel"]}, "its class names differ from those of a: dog, eel"),
        ({"classes": ["dog", "cat"]}, "its class names differ from those of a: in order"),
        ({"public": {"digest": "4567" * 16, "size": 40}}, "its public set is not that of a"),
    ],
)
def test_a_site_that_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MessageError, match=re.escape(message)):
        check_site_info(info("b", **changes), federation(), {"a": info("a")})


def test_classes_that_the_file_does_not_name_are_refused() -> None:
    with pytest.raises(MessageError, match="has the class 'cat', which the file does not name"):
        check_site_info(info("b"), federation(classes=("dog",)), {})


class FakeTransport:
    """Sites that are connected from the start, and reasons why others were refused."""

    names = ("a", "b")

    def __init__(self, *connected: str, refused: dict[int, str] | None = None) -> None:
        self.connected, self.refused = list(connected), refused or {}
        self.site_info = {name: info(name) for name in connected}

    def register_sites(self) -> list[str]:
        return self.connected


def register(transport: Any, file: FederationFile, **options: Any) -> tuple[Any, list[str]]:
    lines: list[str] = []
    return register_sites(file, file.plan(), transport, lines.append, **options), lines


def test_the_federation_is_described_by_its_sites() -> None:
    spec, lines = register(FakeTransport("a", "b"), federation(rounds=7, seed=3))
    assert [(client.name, client.train) for client in spec.clients] == [("a", 48), ("b", 48)]
    assert (spec.classes, spec.rounds, spec.seed, spec.public_size) == (("cat", "dog"), 7, 3, 40)
    assert lines == [
        "waiting for a, b",
        "a: mlp, 48 training and 32 test samples, 2 classes, 1 GiB free",
        "b: mlp, 48 training and 32 test samples, 2 classes, 1 GiB free",
    ]


def test_a_quorum_may_start_without_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REGISTRATION_SECONDS", 0.01)
    spec, lines = register(FakeTransport("a"), federation())
    assert [(client.name, client.train) for client in spec.clients] == [("a", 48), ("b", 0)]
    assert lines[-1] == "b is not connected: it may join later"


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"quorum": 0.9}, {}, "only 1 of 2 sites are connected, and quorum is 90% (b: no)"),
        ({"sites": [{"name": "a"}, {"name": "b"}]}, {}, "b: no; if the run may start without b, give its model"),
        ({"wait": 60}, {"require_all": True}, "b: no"),
    ],
)
def test_too_few_sites(
    changes: dict[str, Any], options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REGISTRATION_SECONDS", 0.01)
    with pytest.raises(UsageError, match=re.escape(message)):
        register(FakeTransport("a", refused={2: "b: no"}), federation(**changes), **options)


def test_a_revoked_site_is_not_waited_for() -> None:
    sites = [{"name": "a"}, {"name": "b", "model": "mlp", "revoked": True}]
    spec, _ = register(FakeTransport("a"), federation(sites=sites, wait=60))
    assert [client.name for client in spec.clients] == ["a", "b"]


def test_sites_that_the_changed_file_calls_revoked_are_locked_out(tmp_path: Path) -> None:
    file, revoked, lines = tmp_path / "federation.toml", [], []  # type: tuple[Path, list[str], list[str]]
    link: Any = SimpleNamespace(nodes={1: "a", 2: "b"}, revoke=revoked.append)
    file.write_text("")
    revocations = Revocations(file, link, lines.append)
    revocations.check()
    assert lines == []
    file.write_text("not TOML")
    revocations.check()
    assert "cannot be read, so no site is revoked" in lines[0]
    sites = [{"name": n, "key": f"{n}.pub", "model": "mlp", "revoked": n == "b"} for n in "ab"]
    file.write_text(tomli_w.dumps({"method": "fedavg", "sites": sites}))
    revocations.check()
    assert revoked == ["b"]
    assert lines[1] == "b is revoked: its key is no longer accepted"


def test_a_resumed_run_has_the_same_id(tmp_path: Path) -> None:
    plan: Any = SimpleNamespace(out=tmp_path)
    first = run_id(plan, resume=True)
    assert re.fullmatch("[0-9a-f]{16}", first)
    assert run_id(plan, resume=True) == first
    assert run_id(plan, resume=False) != first


def test_only_its_user_can_read_the_folder_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def connect(federation: FederationFile, plan: Plan, log: Any) -> Iterator[Any]:
        (plan.out / "superlink").mkdir(parents=True)
        yield None, None

    def write(plan: Plan, *arguments: Any, **options: Any) -> Any:
        for name in ("events.jsonl", "result.json"):
            (plan.out / name).write_text("{}")
        (plan.out / "checkpoint").mkdir()

    spec = FederationSpec(("x", "y"), tuple(ClientInfo(n, "mlp", 48, 1, OWN) for n in "ab"), rounds=1, seed=0)
    monkeypatch.setattr(module, "connected", connect)
    monkeypatch.setattr(module, "register_sites", lambda *arguments: spec)
    monkeypatch.setattr(module, "FlowerEngine", lambda *arguments, **options: None)
    monkeypatch.setattr(module, "run_on_engine", write)
    before = os.umask(0o022)
    try:
        serve(federation(method="fedavg", public=None, out=tmp_path / "run"), lambda line: None)
        assert os.umask(0o022) == 0o022  # other code in this process keeps its own
    finally:
        os.umask(before)
    modes = {path.relative_to(tmp_path).as_posix(): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes == {
        "run": 0o700, "run/superlink": 0o700, "run/checkpoint": 0o700, "run/events.jsonl": 0o600,
        "run/result.json": 0o600, "run/federation.json": 0o600,
    }  # fmt: skip


def test_a_server_does_not_start_without_keys(tmp_path: Path) -> None:
    sites = [{"name": n, "key": f"{n}.pub"} for n in "ab"]
    path = tmp_path / "federation.toml"
    path.write_text(tomli_w.dumps({"method": "fccl+", "public": "photos", "sites": sites}))
    with pytest.raises(UsageError, match=r"cannot read .*server.key: No such file.*fedchoir keys creates it"):
        serve(read_federation(path), print)
