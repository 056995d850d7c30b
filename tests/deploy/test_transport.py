"""Registration of sites, and messages over a grid in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Error, Message
from flwr.supercore.task_identity import TaskIdentity

from fedchoir.core.federation_spec import ClientInfo
from fedchoir.deploy import transport as module
from fedchoir.deploy.keys import make_server
from fedchoir.deploy.records import SITE_INFO, from_records, signature_of, to_records
from fedchoir.deploy.signing import SignedMessage, Signer, verify_signature
from fedchoir.deploy.transport import GridTransport
from fedchoir.engines.messages import Envelope, MessageError

RUN = 7


def info(name: str) -> dict[str, Any]:
    return {
        "name": name, "model": "mlp", "train": 48, "test": 32, "classes": ["cat", "dog"], "public": None,
        "versions": {"torch": "2.11.0"}, "free": 2**30,
        "inputs": {"modality": "image", "shape": [3, 32, 32], "vocabulary": 0, "tensors": []},
    }  # fmt: skip


class FakeGrid:
    """A grid whose nodes reply at once. ``reply`` returns the reply's header, an error, or None for no reply."""

    def __init__(self, nodes: Iterable[int]) -> None:
        self.nodes = set(nodes)
        self.run = SimpleNamespace(run_id=RUN)
        self.pushed: list[Message] = []
        self.replies: dict[str, Message] = {}
        self.reply: Callable[[int, Message], dict[str, Any] | Error | None] = lambda node, message: info("ab"[node - 1])

    def get_node_ids(self) -> list[int]:
        return sorted(self.nodes)

    def push_messages(self, messages: list[Message]) -> list[str | None]:
        (message,) = messages
        message_id = f"message-{len(self.pushed)}"
        message.metadata.__dict__["_message_id"] = message_id
        self.pushed.append(message)
        reply = self.reply(message.metadata.dst_node_id, message)
        if reply is not None:
            content = reply if isinstance(reply, Error) else to_records(Envelope(reply).text(), [])
            self.replies[message_id] = Message(content, reply_to=message)
        return [message_id]

    def pull_messages(self, message_ids: list[str]) -> list[Message]:
        return [self.replies.pop(key) for key in message_ids if key in self.replies]


@pytest.fixture(autouse=True)
def task_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_task_id", 1), ("_run_id", RUN), ("_node_id", 0)):
        monkeypatch.setattr(TaskIdentity, name, value)
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)


def make(grid: FakeGrid, **changes: Any) -> GridTransport:
    values: dict[str, Any] = {
        "nodes": {1: "a", 2: "b"}, "names": ("a", "b"), "site_info_request": {"method": "fedmd"}, "deadline": 0.1,
        "limit": 10**6, **changes,
    }  # fmt: skip
    return GridTransport(grid, **values)  # type: ignore[arg-type]


def test_connected_sites_are_asked_once() -> None:
    grid = FakeGrid({1})
    transport = make(grid)
    assert transport.register_sites() == ["a"]
    assert transport.register_sites() == ["a"]
    assert [message.metadata.message_type for message in grid.pushed] == [SITE_INFO]
    grid.nodes.add(2)
    assert transport.register_sites() == ["a", "b"]
    assert transport.site_info["b"].model_dump() == info("b")
    grid.nodes.remove(1)
    assert transport.register_sites() == ["b"]


def test_nodes_without_a_registered_key_are_not_asked() -> None:
    grid = FakeGrid({1, 3})
    assert make(grid).register_sites() == ["a"]
    assert [message.metadata.dst_node_id for message in grid.pushed] == [1]


def test_a_site_may_not_use_the_name_of_another() -> None:
    grid = FakeGrid({1})
    grid.reply = lambda node, message: info("b")
    transport = make(grid)
    assert transport.register_sites() == []
    assert transport.refused == {1: "a: gives its name as 'b', but its key is that of 'a'"}


HOSTILE_INFO: dict[str, dict[str, Any]] = {
    "missing": {"train": ...}, "text": {"train": "many"}, "float": {"train": 48.5}, "negative": {"train": -1},
    "huge": {"train": 10**15}, "400 digits": {"train": 10**400}, "boolean": {"test": True}, "none": {"classes": None},
    "no classes": {"classes": []}, "many classes": {"classes": ["x"] * 20_000}, "escape": {"model": "mlp\x1b[2J"},
    "newline": {"model": "mlp\nround 3: all fine"}, "long": {"model": "m" * 10_000}, "nested": {"public": {"a": {}}},
    "digest": {"public": {"digest": "../../etc/passwd", "size": 1}}, "extra": {"admin": True}, "path": {"name": "x/a"},
    "order": {"model": "mlp\u202e"},
    "list": {"name": ["a"]}, "versions": {"versions": {f"v{k}": "1" for k in range(1000)}}, "free": {"free": -5},
}  # fmt: skip


@pytest.mark.parametrize("changes", HOSTILE_INFO.values(), ids=list(HOSTILE_INFO))
def test_hostile_site_information_is_refused_and_logged_in_plain_text(changes: dict[str, Any]) -> None:
    grid = FakeGrid({1})
    header = {key: value for key, value in {**info("a"), **changes}.items() if value is not ...}
    grid.reply = lambda node, message: header
    transport = make(grid)
    assert transport.register_sites() == []
    reason = transport.refused[1]
    assert reason.isprintable()
    assert len(reason) < 300


@pytest.mark.parametrize("model", ["resnet10@4", "timm:convnext_atto.d2_in1k", "vgg9"])
def test_names_that_sites_really_have_are_accepted(model: str) -> None:
    grid = FakeGrid({1})
    classes = ["T-shirt/top", "golden retriever (dog)", "l'été", "5 %", "犬"]
    grid.reply = lambda node, message: {**info("a"), "model": model, "classes": classes}
    transport = make(grid)
    assert transport.register_sites() == ["a"]
    assert transport.site_info["a"].classes == classes


def test_a_refused_site_is_asked_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(info: Any) -> None:
        raise MessageError("does not fit")

    grid = FakeGrid({1})
    transport = make(grid, admit=refuse)
    assert transport.register_sites() == transport.register_sites() == []
    assert len(grid.pushed) == 1
    assert transport.refused == {1: "a: does not fit"}
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)
    transport.admit = lambda info: None
    assert transport.register_sites() == ["a"]
    assert transport.refused == {}


def test_late_sites_complete_the_list_of_clients() -> None:
    grid = FakeGrid({1})
    transport = make(grid)
    clients = tuple(ClientInfo(name, "mlp", 0, 0, "own") for name in "ab")
    assert [client.train for client in transport.update_clients(clients)] == [48, 0]
    grid.nodes.add(2)
    clients = transport.update_clients(clients)
    assert [client.train for client in clients] == [48, 48]
    asked = len(grid.pushed)
    assert transport.update_clients(clients) == clients
    assert len(grid.pushed) == asked


def test_every_client_gets_a_reply_or_a_reason() -> None:
    grid = FakeGrid({1, 2, 3, 4})
    names = ("a", "b", "c", "d", "e")
    transport = make(grid, nodes={}, names=names, limit=1000)
    grid.reply = lambda node, message: info(names[node - 1])
    transport.register_sites()
    replies = {1: {"x": 1}, 2: Error(2, "out of memory"), 3: None, 4: {"x": "y" * 2000}}
    grid.reply = lambda node, message: replies[node]
    calls: list[int] = []
    transport.before_send = lambda: calls.append(1)
    results = dict(transport.deliver({k: Envelope({"serial": 5}) for k in range(5)}))
    assert calls == [1]
    assert isinstance(results[0], Envelope)
    assert results[0].header == {"x": 1}
    assert results[1] == "out of memory"
    assert results[2] == "no reply within 0.1 s"
    assert "1000 are allowed" in str(results[3])
    assert results[4] == "not connected"
    assert grid.pushed[-1].metadata.group_id == "5"


def test_messages_are_signed_for_their_run_and_node(tmp_path: Path) -> None:
    make_server(tmp_path, ["127.0.0.1"])
    signer = Signer.read(tmp_path / "server.crt", tmp_path / "server.key")
    grid = FakeGrid({1})
    make(grid, signer=signer).register_sites()
    content = grid.pushed[0].content
    certificate, signature, sent, deadline = signature_of(content)
    assert deadline == pytest.approx(0.1)
    text, blobs = from_records(content, 10**6)
    signed = SignedMessage(RUN, 1, SITE_INFO, sent, deadline, text, blobs)
    verify_signature(tmp_path / "ca.crt", certificate, signature, signed)
    assert abs(time.time_ns() - sent) < 60 * 10**9
