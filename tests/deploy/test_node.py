"""The node: its options, which messages it carries out, its child processes, and what it logs."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

from fedchoir.deploy import node as module
from fedchoir.deploy.audit import read_audit
from fedchoir.deploy.keys import make_server, make_site
from fedchoir.deploy.node import Node, NodeOptions, receive_reply
from fedchoir.deploy.policy import Policy
from fedchoir.deploy.records import ACTIONS, EXTRA_TTL, SITE_INFO, Signature, from_records, to_records
from fedchoir.deploy.signing import SignedMessage, Signer
from fedchoir.deploy.site_data import LocalSite
from fedchoir.engines.messages import Envelope, MessageError
from fedchoir.utils.errors import UsageError
from fedchoir.utils.subprocess_channel import ChildProcess

RUN, NODE = 7, 5
TRUSTING = Policy(trust_server=True)


@pytest.fixture(autouse=True)
def task_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_task_id", 1), ("_run_id", RUN), ("_node_id", 0)):
        monkeypatch.setattr(TaskIdentity, name, value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "--ca is missing (fedchoir keys creates it); --insecure is only for tests"),
        ({"ca": "ca.crt"}, "--key is missing (fedchoir keys creates it); --insecure is only for tests"),
        ({"ca": "ca.crt", "key": "lost"}, "--key lost: there is no such file"),
        ({"server": "fed.example.org"}, "it should be HOST:PORT"),
        ({"insecure": True, "policy": Policy(peers=Path("lost"))}, "--peers lost: it should be a folder"),
        ({"insecure": True, "policy": Policy()}, "give --federation FILE, this site's copy of the federation's file"),
    ],
)
def test_options_that_are_not_possible(
    options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ca.crt").touch()
    paths = {name: Path(value) if name in ("ca", "key") else value for name, value in options.items()}
    with pytest.raises(UsageError, match=re.escape(message)):
        NodeOptions(**{"server": "localhost:8000", "policy": TRUSTING, **paths}).check()
    NodeOptions("localhost:8000", TRUSTING, insecure=True).check()


def make_node(folder: Path, **options: Any) -> tuple[Node, list[str]]:
    lines: list[str] = []
    site = LocalSite("red", "mlp", folder / "data.npz", folder / "work", device="cpu")
    given = {"policy": TRUSTING, **(options or {"insecure": True})}
    return Node(site, NodeOptions("127.0.0.1:1", **given), lines.append), lines


def message(kind: str = ACTIONS, deadline: float = 20.0, **records: Any) -> Message:
    return Message(to_records(**{"text": "{}", "blobs": [], **records}), NODE, kind, ttl=deadline + EXTRA_TTL)


def test_unsigned_and_foreign_messages_are_refused(tmp_path: Path) -> None:
    for folder in ("ours", "foreign"):
        make_server(tmp_path / folder, ["127.0.0.1"])
    key, _ = make_site(tmp_path, "red")
    node, _ = make_node(tmp_path, ca=tmp_path / "ours" / "ca.crt", key=key)
    signers = {n: Signer.read(tmp_path / n / "server.crt", tmp_path / n / "server.key") for n in ("ours", "foreign")}

    def signed(name: str = "ours", run: int = RUN, age: float = 0.0, deadline: float = 20.0) -> Message:
        signer, sent = signers[name], time.time_ns() - int(age * 1e9)
        content = SignedMessage(run, NODE, ACTIONS, sent, deadline, "{}", [])
        signature = Signature(signer.certificate, signer.sign(content), sent, deadline)
        return Message(to_records("{}", [], **signature._asdict()), NODE, ACTIONS, ttl=deadline + EXTRA_TTL)

    for bad in (message(), signed("foreign"), signed(run=RUN + 1)):
        with pytest.raises(MessageError, match="not signed by this federation's server"):
            node.handle(bad, RUN, NODE)
    with pytest.raises(MessageError, match="the message is 1000 s old, and its deadline was 20 s"):
        node.handle(signed(age=1000), RUN, NODE)
    good = signed()
    with pytest.raises(MessageError, match="the request is malformed"):  # the signature is valid, the content is not
        node.handle(good, RUN, NODE)
    with pytest.raises(MessageError, match="this message, or a newer one, was received before"):
        node.handle(good, RUN, NODE)
    kinds = [line["kind"] for line in read_audit(tmp_path / "work" / "state" / "audit.jsonl")]
    assert kinds == ["refused"] * 6


def question(**changes: Any) -> Message:
    request = {"method": "fedmd", "settings": {}, "public": None, **changes}
    return message(SITE_INFO, text=json.dumps(request))


def test_a_question_about_the_site_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"name": "red", "model": "mlp", "train": 9, "public": None}
    monkeypatch.setattr(LocalSite, "site_info", lambda self, settings, public: facts)
    node, lines = make_node(tmp_path)
    assert node.handle(question(), RUN, NODE).header == facts
    assert lines == [
        "red: the server asks about this site: sizes, class names, versions, public set",
        "red: sends model: mlp, train: 9",
    ]


@pytest.mark.parametrize(
    ("name", "there"),
    [("PRIVATE", True), ("PRIVATE", False), ("/etc/passwd", True), ("../data.npz", True), ("module:function", True)],
)
def test_a_server_cannot_name_a_file_of_the_site(name: str, there: bool, tmp_path: Path) -> None:
    """What a site answers does not depend on whether the file exists, and tells nothing about it."""
    rng = np.random.default_rng(0)
    images = {"x": rng.integers(0, 256, (12, 16, 16, 3), dtype=np.uint8), "y": np.arange(12) % 2}
    split = {f"{part}_{name}": array for part in ("train", "test") for name, array in images.items()}
    np.savez(tmp_path / "data.npz", **split)
    private = tmp_path / "images.npz"
    if there:
        np.savez(private, x=images["x"])
    node, _ = make_node(tmp_path)
    public = {"name": str(private) if name == "PRIVATE" else name, "size": 2}
    with pytest.raises(MessageError) as error:
        node.handle(question(public=public), RUN, NODE)
    assert str(error.value).startswith("refused: the public set is not one of photos, ")
    assert "npz" not in str(error.value)


def test_an_error_at_the_site_tells_the_server_its_kind_only(tmp_path: Path) -> None:
    node, lines = make_node(tmp_path)  # there is no data.npz
    with pytest.raises(MessageError) as error:
        node.handle(question(), RUN, NODE)
    assert str(error.value) == "UsageError at this site; its operator finds the reason in its log"
    assert str(tmp_path) in lines[-1]


def test_large_messages_are_refused(tmp_path: Path) -> None:
    node, _ = make_node(tmp_path, insecure=True, policy=Policy(trust_server=True, max_message_mb=1e-5))
    with pytest.raises(MessageError, match="10 are allowed"):
        node.handle(message(blobs=[b"x" * 20]), RUN, NODE)


def run_child(handle: Callable[[], Envelope], deadline: float = 20.0) -> tuple[Message, str]:
    child = ChildProcess.fork("the client's process", lambda channel: module._send_reply(channel, handle))
    return receive_reply(child, message(deadline=deadline))


def test_a_child_process_sends_the_reply() -> None:
    reply, error = run_child(lambda: Envelope({"pid": os.getpid()}, [b"abc", b""]))
    text, blobs = from_records(reply.content, 1000)
    assert error == ""
    assert text != f'{{"pid": {os.getpid()}}}'
    assert blobs == [b"abc", b""]


def test_a_child_that_raises_dies_or_hangs_becomes_an_error_reply() -> None:
    def raises() -> Envelope:
        raise RuntimeError("the scanner is on fire")

    def dies() -> Envelope:
        os._exit(3)

    def hangs() -> Envelope:
        time.sleep(60)
        return Envelope({})

    start = time.monotonic()
    for handle, expected in (
        (raises, "the client's process failed: RuntimeError"),
        (dies, "the client's process ended with exit code 3"),
        (hangs, "the client's process took longer than the deadline of 1 s"),
    ):
        reply, error = run_child(handle, deadline=1.0)
        assert error == expected
        assert reply.error.reason == expected
    assert time.monotonic() - start < 30


class FakeSuperNode:
    """A SuperNode process that ended, or runs, as a test wants."""

    def __init__(self, log: Path) -> None:
        self.log, self.code = log, None

    def exit_code(self) -> int | None:
        return self.code

    def last_error(self) -> str:
        return "the key is not registered"


def test_the_log_tells_why_the_connection_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, lines = make_node(tmp_path)
    supernode: Any = FakeSuperNode(tmp_path / "log")
    monkeypatch.setattr(node, "_supernode", supernode)
    supernode.log.write_text("INFO : starting\n")
    assert node._supernode_runs()
    supernode.code = 1
    assert not node._supernode_runs()
    supernode.log.write_text("INFO : SuperNode ID: 5\n")
    assert not node._supernode_runs()
    supernode.code = -9
    assert not node._supernode_runs()
    assert lines == [
        "red: not connected to 127.0.0.1:1: the key is not registered; trying again",
        "red: connected to 127.0.0.1:1: waiting for requests",
        "red: 127.0.0.1:1 closed the connection (its run is over, or it was stopped): waiting for it",
        "red: the connection's process was killed by signal 9: connecting again",
    ]


def test_a_node_that_waits_says_so_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, lines = make_node(tmp_path)
    supernode: Any = FakeSuperNode(tmp_path / "log")
    monkeypatch.setattr(node, "_supernode", supernode)
    supernode.log.write_text("")
    supernode.code = 1
    for _ in range(5):
        assert not node._supernode_runs()
    assert len(lines) == 1


def test_a_node_gives_up_when_it_is_refused_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, _ = make_node(tmp_path)
    supernode: Any = FakeSuperNode(tmp_path / "log")
    supernode.log.touch()
    supernode.code = 1
    monkeypatch.setattr(node, "_supernode", supernode)
    monkeypatch.setattr(module, "REFUSED_SECONDS", -1.0)
    with pytest.raises(UsageError, match=r"127\.0\.0\.1:1 refused red: the key is not registered \(full log: "):
        node._supernode_runs()
