"""The node: its options, which messages it carries out, its child processes, and what it logs."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

from fedchoir.deploy import node as module
from fedchoir.deploy.keys import make_server, make_site
from fedchoir.deploy.node import Node, NodeOptions, receive_reply
from fedchoir.deploy.records import ACTIONS, EXTRA_TTL, SITE_INFO, from_records, to_records
from fedchoir.deploy.signing import Signer
from fedchoir.deploy.site_data import LocalSite
from fedchoir.engines.messages import Envelope, MessageError
from fedchoir.utils.errors import UsageError
from fedchoir.utils.subprocess_channel import ChildProcess

RUN, NODE = 7, 5


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
        ({"insecure": True, "peers": Path("lost")}, "--peers lost: it should be a folder"),
    ],
)
def test_options_that_are_not_possible(
    options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ca.crt").touch()
    paths = {name: Path(value) if name in ("ca", "key") else value for name, value in options.items()}
    with pytest.raises(UsageError, match=re.escape(message)):
        NodeOptions(**{"server": "localhost:8000", **paths}).check()
    NodeOptions("localhost:8000", insecure=True).check()


def make_node(folder: Path, **options: Any) -> tuple[Node, list[str]]:
    lines: list[str] = []
    site = LocalSite("red", "mlp", folder / "data.npz", folder / "work", device="cpu")
    return Node(site, NodeOptions("127.0.0.1:1", **(options or {"insecure": True})), lines.append), lines


def message(kind: str = ACTIONS, deadline: float = 20.0, **records: Any) -> Message:
    return Message(to_records(**{"text": "{}", "blobs": [], **records}), NODE, kind, ttl=deadline + EXTRA_TTL)


def test_unsigned_and_foreign_messages_are_refused(tmp_path: Path) -> None:
    for folder in ("ours", "foreign"):
        make_server(tmp_path / folder, ["127.0.0.1"])
    key, _ = make_site(tmp_path, "red")
    node, _ = make_node(tmp_path, ca=tmp_path / "ours" / "ca.crt", key=key)
    signers = {n: Signer.read(tmp_path / n / "server.crt", tmp_path / n / "server.key") for n in ("ours", "foreign")}

    def signed(name: str, run: int) -> Message:
        signer = signers[name]
        return message(certificate=signer.certificate, signature=signer.sign(run, NODE, ACTIONS, "{}", []))

    for bad in (message(), signed("foreign", RUN), signed("ours", RUN + 1)):
        with pytest.raises(MessageError, match="not signed by this federation's server"):
            node.handle(bad, RUN, NODE)
    with pytest.raises(KeyError):  # the signature is valid, and the message has no content
        node.handle(signed("ours", RUN), RUN, NODE)


def test_a_question_about_the_site_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalSite, "site_info", lambda self, request: {"name": self.name, **request})
    node, lines = make_node(tmp_path)
    reply = node.handle(message(SITE_INFO, text='{"method": "fedmd"}'), RUN, NODE)
    assert reply.header == {"name": "red", "method": "fedmd"}
    assert lines == ["red: the server asks for this site's information: sizes, class names, versions"]


def test_large_messages_are_refused(tmp_path: Path) -> None:
    node, _ = make_node(tmp_path, insecure=True, limit=10)
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
        (raises, "RuntimeError: the scanner is on fire"),
        (dies, "the client's process ended with exit code 3"),
        (hangs, "took longer than the deadline of 1 s"),
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
        "red: not connected: the key is not registered; trying again",
        "red: connected",
        "red: disconnected from 127.0.0.1:1: it ended its run, was stopped or revoked this site; reconnecting",
        "red: the SuperNode process was killed by signal 9; starting it again",
    ]


def test_a_node_gives_up_when_it_is_refused_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, _ = make_node(tmp_path)
    supernode: Any = FakeSuperNode(tmp_path / "log")
    supernode.log.touch()
    supernode.code = 1
    monkeypatch.setattr(node, "_supernode", supernode)
    monkeypatch.setattr(module, "REFUSED_SECONDS", -1.0)
    with pytest.raises(UsageError, match=r"127\.0\.0\.1:1 refused red: the key is not registered \(full log: "):
        node._supernode_runs()
