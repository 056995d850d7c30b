"""Carry envelopes over Flower's grid: register sites as they connect, send messages, and collect replies in time."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from flwr.app import Message
from flwr.serverapp import Grid
from pydantic import BaseModel, ConfigDict, Field

from fedchoir.core.federation_spec import ClientInfo
from fedchoir.deploy.config import OWN
from fedchoir.deploy.engine import Replies
from fedchoir.deploy.records import ACTIONS, EXTRA_TTL, SITE_INFO, Signature, from_records, to_records
from fedchoir.deploy.signing import SignedMessage, Signer
from fedchoir.engines.headers import Count, MessageError, Name, validated
from fedchoir.engines.messages import Envelope
from fedchoir.utils.input_spec import InputSpec
from fedchoir.utils.text import printable

POLL_SECONDS = 0.2  # between two attempts to pull replies
SITE_INFO_SECONDS = 120.0
RETRY_SECONDS = 20.0  # before a refused node is asked again: its operator may have fixed the problem


Length = Annotated[int, Field(ge=1, le=10**7)]


class PublicInfo(BaseModel):
    """A site's copy of the public set."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    digest: str = Field(pattern=r"^[0-9a-f]{16,128}$")
    size: Count


class InputsInfo(BaseModel):
    """What the site's model receives."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    modality: Literal["image", "table", "series", "text", "tensor"]
    shape: list[Length] = Field(min_length=1, max_length=8)
    vocabulary: Annotated[int, Field(ge=0, le=10**7)]
    tensors: list[list[Length]] = Field(max_length=64)

    def spec(self) -> InputSpec:
        return InputSpec(self.modality, tuple(self.shape), self.vocabulary, tuple(map(tuple, self.tensors)))


class SiteInfo(BaseModel):
    """What a site states about itself before a run."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    name: Name
    model: Name
    train: Count
    test: Count
    classes: list[Name] = Field(min_length=1, max_length=10_000)
    public: PublicInfo | None
    inputs: InputsInfo
    versions: dict[Name, Name] = Field(max_length=32)
    free: Annotated[int, Field(ge=0, le=10**18)]


@dataclass
class GridTransport:
    """Sends envelopes to the nodes of sites. ``admit`` raises `MessageError` for a site that does not fit."""

    grid: Grid
    nodes: Mapping[int, str]  # site names by node id, as registered with their keys; empty without keys
    names: tuple[str, ...]
    site_info_request: Mapping[str, Any]
    deadline: float
    limit: int
    signer: Signer | None = None
    admit: Callable[[SiteInfo], None] = lambda info: None
    before_send: Callable[[], None] = lambda: None
    site_info: dict[str, SiteInfo] = field(default_factory=dict)  # by site
    refused: dict[int, str] = field(default_factory=dict)  # reasons by node id
    _node_ids: dict[str, int] = field(default_factory=dict)  # of the sites that are connected
    _asked_at: dict[int, float] = field(default_factory=dict)

    def register_sites(self) -> list[str]:
        """Ask nodes that have just connected about their sites. Returns the names of all connected sites."""
        online = set(self.grid.get_node_ids())
        self._node_ids = {name: node for name, node in self._node_ids.items() if node in online}
        recently = time.monotonic() - RETRY_SECONDS
        known = {*self._node_ids.values(), *(node for node, at in self._asked_at.items() if at > recently)}
        new = [n for n in online - known if not self.nodes or n in self.nodes]
        requests = {node: Envelope(dict(self.site_info_request)) for node in new}
        for node, reply in self._exchange(requests, SITE_INFO, min(SITE_INFO_SECONDS, self.deadline)):
            self._asked_at[node] = time.monotonic()
            try:
                self._register(node, reply)
                self.refused.pop(node, None)
            except MessageError as error:
                self.refused[node] = f"{self.nodes.get(node, f'node {node}')}: {printable(str(error))}"
        return [name for name in self.names if name in self._node_ids]

    def _register(self, node: int, reply: Envelope | str) -> None:
        if isinstance(reply, str):
            raise MessageError(reply)
        info = validated(SiteInfo, reply.header, "its site information")
        registered = self.nodes.get(node, info.name)
        if info.name != registered or info.name not in self.names:
            raise MessageError(f"gives its name as {info.name!r}, but its key is that of {registered!r}")
        self.admit(info)
        self.site_info[info.name] = info
        self._node_ids[info.name] = node

    def update_clients(self, clients: tuple[ClientInfo, ...]) -> tuple[ClientInfo, ...]:
        """The same clients, with the information of sites that joined late. Asks only if a site is missing."""
        if len(self._node_ids) == len(self.names):
            return clients
        self.register_sites()
        return tuple(client_info(self.site_info[c.name]) if c.name in self.site_info else c for c in clients)

    def deliver(self, envelopes: Mapping[int, Envelope], within: float = math.inf) -> Replies:
        """Send one envelope to each client and wait for replies, at most ``within`` seconds."""
        self.before_send()
        online = set(self.grid.get_node_ids())
        clients: dict[int, int] = {}  # by node id
        for k in envelopes:
            node = self._node_ids.get(self.names[k])
            if node is not None and node in online:
                clients[node] = k
            else:
                self._node_ids.pop(self.names[k], None)
                yield k, "not connected"
        messages = {node: envelopes[k] for node, k in clients.items()}
        for node, reply in self._exchange(messages, ACTIONS, min(self.deadline, within)):
            yield clients[node], reply

    def _exchange(self, envelopes: Mapping[int, Envelope], message_type: str, deadline: float) -> Replies:
        """Push one message to each node, then pull replies until all have arrived or the deadline has passed."""
        waiting: dict[str, int] = {}  # node by message id
        for node, envelope in envelopes.items():
            (message_id,) = self.grid.push_messages([self._message(node, envelope, message_type, deadline)])
            if message_id is None:
                yield node, "the SuperLink did not accept the message"
            else:
                waiting[message_id] = node
        end = time.monotonic() + deadline
        while waiting and time.monotonic() < end:
            for reply in self.grid.pull_messages(list(waiting)):
                yield waiting.pop(reply.metadata.reply_to_message_id), self._read(reply)
            if waiting:
                time.sleep(POLL_SECONDS)
        for node in waiting.values():
            yield node, f"no reply within {deadline:g} s"

    def _message(self, node: int, envelope: Envelope, message_type: str, deadline: float) -> Message:
        text, signed = envelope.text(), {}
        if self.signer is not None:
            run, sent = self.grid.run.run_id, time.time_ns()
            content = SignedMessage(run, node, message_type, sent, float(deadline), text, envelope.blobs)
            signed = Signature(self.signer.certificate, self.signer.sign(content), sent, float(deadline))._asdict()
        records = to_records(text, envelope.blobs, **signed)
        group = str(envelope.header.get("serial", ""))
        return Message(records, node, message_type, ttl=deadline + EXTRA_TTL, group_id=group)

    def _read(self, reply: Message) -> Envelope | str:
        if reply.has_error():
            return printable(reply.error.reason or "") or f"Flower error {reply.error.code}"
        try:
            return Envelope.read(*from_records(reply.content, self.limit), self.limit)
        except MessageError as error:
            return str(error)


def client_info(info: SiteInfo) -> ClientInfo:
    return ClientInfo(info.name, info.model, info.train, info.test, domain=OWN)
