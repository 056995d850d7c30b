"""The engine for clients at real sites: it packs work into as few messages as possible and reads the replies.

A client's state is the one after its last *acknowledged* message. A client that fails, hangs or is not connected is
left out of the exchange. When it returns, it first runs the steps that it missed in this round and the last one (and
in round 0, which may contain the method's setup).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from fedchoir.compression.chain import parse
from fedchoir.core.actions import Action, Exchange
from fedchoir.core.exchange import Reply, state_shapes
from fedchoir.core.federation_spec import ClientInfo
from fedchoir.core.scores import Detail, Evaluation
from fedchoir.deploy.received import received_digest
from fedchoir.deploy.reply_journal import ReplyJournal
from fedchoir.engines.headers import MessageError
from fedchoir.engines.messages import Envelope, pack_action, pack_spec, unpack_action, unpack_reply
from fedchoir.methods.base import Method
from fedchoir.payload import Payload, PayloadError, check, declared_by, state_payload
from fedchoir.utils.errors import UsageError

KEY_SECONDS = 60.0  # deadline of messages about keys: replying to one takes a site no training


Replies = Iterator[tuple[int, Envelope | str]]
"""Pairs of a client and its reply, as they arrive; a string is the reason why there is none."""
Requests = Mapping[int, Mapping[str, Any]]
"""Messages of the secure aggregation protocol, by client."""


class Transport(Protocol):
    """Carries envelopes to sites and returns their replies."""

    def update_clients(self, clients: tuple[ClientInfo, ...]) -> tuple[ClientInfo, ...]:
        """The same clients, with the information of sites that joined since the last call."""

    def deliver(self, envelopes: Mapping[int, Envelope], within: float = math.inf) -> Replies:
        """Send one envelope to each client and wait for replies, at most ``within`` seconds."""


@dataclass(frozen=True)
class Work:
    """One thing for a client to do: an action, or an evaluation (of the weights given, or of its own model)."""

    round: int
    action: Action | None = None
    weights: Payload | None = None
    detail: Detail = "accuracy"

    def pack(self, envelope: Envelope, client: int) -> dict[str, Any]:
        if self.action is not None:
            return {"round": self.round, **pack_action(envelope, self.action, client)}
        weights = None if self.weights is None else envelope.put(self.weights)
        return {"round": self.round, "evaluate": weights, "detail": self.detail}

    @classmethod
    def unpack(cls, envelope: Envelope, packed: Mapping[str, Any], method: Method) -> Work:
        if "name" in packed:
            return cls(int(packed["round"]), unpack_action(envelope, packed, method, finite=True))
        if "evaluate" not in packed:
            raise MessageError("the request is malformed: work without an action or an evaluation")
        weights = packed["evaluate"]
        if weights is not None and type(method).global_weights is Method.global_weights:
            raise MessageError(f"refused: {method.name} has no global model, and the server asks to evaluate one")
        payload = None if weights is None else envelope.get(weights, finite=True, chain="")  # never compressed
        return cls(int(packed["round"]), weights=payload, detail=packed.get("detail", "accuracy"))


class FlowerEngine:
    """Runs a method's actions on clients at other sites. The end of a round waits for the next message."""

    def __init__(
        self,
        method: Method,
        transport: Transport,
        *,
        run: str,
        public: Mapping[str, Any] | None,
        journal: Path | None = None,
    ) -> None:
        self.method = method
        self.seconds = {"public": 0.0, "local": 0.0, "evaluate": 0.0}
        self.notes: list[str] = []  # sites print their own
        self._transport, self._run, self._public = transport, run, public
        clients = range(len(method.spec.clients))
        self._queues: dict[int, list[Work]] = {k: [] for k in clients}
        self._acknowledged = dict.fromkeys(clients, 0)  # serial of the last message that each client replied to
        self._saved = [dict(self._acknowledged)]  # the same at the last two checkpoints
        self._received = dict.fromkeys(clients, "")  # a hash of what each client has received (`received_digest`)
        self._serial = 0
        self._failed: dict[int, str] = {}  # why clients did not reply to the last message
        self._journal = ReplyJournal(journal, run)

    # -- messages --------------------------------------------------------------------------------------------------

    def execute(
        self, clients: Sequence[int], actions: Sequence[Action], round_index: int, masking: Requests | None = None
    ) -> Iterator[Reply]:
        """Send one message to each client: its queue, then these actions. With ``masking`` (secure aggregation), a
        client without a masking request is not asked: it has missed the exchange."""
        new = [Work(round_index, action) for action in actions]
        work = {k: [*self._due(k, round_index), *new] for k in clients}
        if masking is not None:
            for k in clients:
                if k not in masking:
                    self._requeue_steps(k, work.pop(k))
        return self._send(work, masking)

    def received(self, clients: Sequence[int], actions: Sequence[Action], round_index: int) -> dict[int, str]:
        """A hash of everything that each client will have received with this message."""
        new = [Work(round_index, action) for action in actions]
        packed: dict[int, bytes] = {}
        messages = {k: self._envelope(k, [*self._due(k, round_index), *new], packed) for k in clients}
        return {k: received_digest(self._received[k], message) for k, message in messages.items()}

    def exchange_keys(self, requests: Requests) -> Iterator[Reply]:
        """Send messages about keys. They do not change a client's state."""
        self._update_clients()
        envelopes = {k: Envelope({"run": self._run, "client": k, "key_request": r}) for k, r in requests.items()}
        for k, reply in self._transport.deliver(envelopes, within=KEY_SECONDS):
            yield Reply(k, error=reply) if isinstance(reply, str) else Reply(k, keys=_keys(reply))

    def defer(self, clients: Sequence[int], actions: Sequence[Action], round_index: int) -> None:
        for k in clients:
            self._queues[k] += [Work(round_index, action) for action in actions]

    def defer_evaluation(self, round_index: int, weights: dict[str, Tensor] | None, detail: Detail) -> None:
        shared = None if weights is None else state_payload("weights", weights)  # kept and serialised once
        for k, queue in self._queues.items():
            payload = shared
            if weights is not None and (own := self.method.client_weights(k, weights, round_index)) is not weights:
                payload = state_payload("weights", own)
            queue.append(Work(round_index, weights=payload, detail=detail))

    def flush(self, round_index: int) -> Iterator[Reply]:
        due = {k: self._due(k, round_index) for k in self._queues}
        return self._send({k: work for k, work in due.items() if work})

    def evaluate(self, weights: dict[str, Tensor] | None, round_index: int, detail: Detail) -> list[Evaluation | None]:
        """Evaluate all clients at once instead of with the next message."""
        self.defer_evaluation(round_index, weights, detail)
        found = {reply.client: reply.deferred.get(round_index) for reply in self.flush(round_index)}
        return [report.evaluation if (report := found.get(k)) else None for k in self._queues]

    def _update_clients(self) -> None:
        spec = self.method.spec
        clients = self._transport.update_clients(spec.clients)
        if clients != spec.clients:
            self.method.spec = replace(spec, clients=clients)

    def _send(self, work: Mapping[int, list[Work]], masking: Requests | None = None) -> Iterator[Reply]:
        self._update_clients()
        if self._serial:
            self._journal.record(self._serial, self._failed)
        self._serial, self._failed = self._serial + 1, {}
        serial, before = self._serial, self._journal.failures(self._serial)
        packed: dict[int, bytes] = {}  # a payload that several clients receive is serialised once
        envelopes = {k: self._envelope(k, items, packed) for k, items in work.items() if k not in before}
        for k, request in (masking or {}).items():
            if k in envelopes:
                envelopes[k].header["masking"] = request
        missing = ((k, why) for k, why in before.items() if k in work)
        for k, received in chain(missing, self._transport.deliver(envelopes)):
            reply = self._reply(k, received, work[k])
            if reply.error:
                self._failed[k] = reply.error
                self._requeue_steps(k, work[k])
            else:
                self._acknowledged[k] = serial
                self._received[k] = received_digest(self._received[k], envelopes[k])
                self._queues[k] = []
            yield reply

    def _envelope(self, client: int, work: Sequence[Work], packed: dict[int, bytes]) -> Envelope:
        method = self.method
        envelope = Envelope(
            {
                "run": self._run,
                "client": client,
                "serial": self._serial,
                "base": self._acknowledged[client],
                "keep": sorted({saved[client] for saved in self._saved}),
                "plan": {
                    "method": method.name,
                    "settings": method.params.model_dump(mode="json"),
                    "task": pack_spec(method.spec),
                    "public": self._public,
                },
            },
            shared=packed,
        )
        envelope.header["work"] = [item.pack(envelope, client) for item in work]
        return envelope

    def _reply(self, client: int, reply: Envelope | str, work: Sequence[Work]) -> Reply:
        if isinstance(reply, str):
            return Reply(client, error=reply)
        try:
            check = partial(self._check_entries, client, work[-1].action)
            payloads, deferred, seconds = unpack_reply(reply, str(parse(self.method.spec.compress).up or ""), check)
        except MessageError as error:
            return Reply(client, error=str(error))
        for phase, value in seconds.items():
            if phase in self.seconds:
                self.seconds[phase] += value
        return Reply(client, payloads, deferred=deferred, keys=_keys(reply))

    def _check_entries(self, client: int, action: Action | None, place: int, entries: Payload) -> None:
        """Raise `PayloadError` unless the entries that a compressed payload lists are the declared ones."""
        if not isinstance(action, Exchange) or place >= (len(action.batches) or 1):
            raise PayloadError("more payloads than were asked for")
        model, modules = state_shapes(self.method, action.function, client)
        local = action.batches[place].dims if action.batches else {}
        dims = {**self.method.spec.dims, **action.dims, **local}
        check(entries, declared_by(action.function), dims, model, modules=modules, finite=False)

    def _requeue_steps(self, client: int, work: Sequence[Work]) -> None:
        """Queue the steps that a client missed. Exchanges and evaluations that it missed are dropped."""
        steps = [item for item in work if item.action is not None and not isinstance(item.action, Exchange)]
        self._queues[client] = steps

    def _due(self, client: int, round_index: int) -> list[Work]:
        """A client's queue without the rounds that it missed entirely, except round 0 (setup)."""
        due = [item for item in self._queues[client] if item.round == 0 or item.round >= round_index - 1]
        self._queues[client] = due
        return due

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def states(self) -> Iterator[tuple[str, dict[str, Tensor] | None]]:
        """The acknowledged serials and the queues. Models stay at the sites."""
        self._saved = [self._saved[-1], dict(self._acknowledged)]
        header = {"run": self._run, "names": self._names, "serial": self._serial, "acknowledged": self._acknowledged}
        envelope = Envelope({**header, "received": self._received})
        envelope.header["queues"] = {k: [item.pack(envelope, k) for item in queue] for k, queue in self._queues.items()}
        blobs = [envelope.text().encode(), *envelope.blobs]
        yield "flower", {f"{n:06d}": torch.frombuffer(bytearray(raw), dtype=torch.uint8) for n, raw in enumerate(blobs)}

    def saved(self, folder: Path) -> None:
        pass  # `states` writes everything each time

    def load(self, read: Callable[[str], dict[str, Tensor]]) -> None:
        text, *blobs = [t.numpy().tobytes() for _, t in sorted(read("flower").items())]
        envelope = Envelope(json.loads(text), blobs)
        header = envelope.header
        if header["names"] != self._names:
            before, now = ", ".join(header["names"]), ", ".join(self._names)
            raise UsageError(f"cannot resume: the sites were {before} and are now {now}; revoked = true locks one out")
        self._run, self._serial = header["run"], int(header["serial"])
        self._acknowledged = {int(k): int(n) for k, n in header["acknowledged"].items()}
        self._saved = [dict(self._acknowledged)]
        self._received = {int(k): digest for k, digest in header["received"].items()}
        for k, queue in header["queues"].items():
            self._queues[int(k)] = [Work.unpack(envelope, item, self.method) for item in queue]

    @property
    def _names(self) -> list[str]:
        return [client.name for client in self.method.spec.clients]


def _keys(reply: Envelope) -> dict[str, Any]:
    keys = reply.header.get("keys")
    return keys if isinstance(keys, dict) else {}
