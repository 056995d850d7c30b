"""Messages as bytes: a JSON header and safetensors blobs, nothing pickled.

An action travels as the *name* of one of the method's functions. The receiver looks the name up in its own copy of the
method, so a message can only run what the receiver's own code offers.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from functools import partial
from typing import Any

from fedchoir.compression.chain import parse
from fedchoir.compression.wire import read_payload
from fedchoir.core.actions import Action, Exchange, PublicBatch, Step
from fedchoir.core.exchange import DeferredReport
from fedchoir.core.federation_spec import FederationSpec
from fedchoir.core.scores import Evaluation
from fedchoir.engines.headers import ActionHeader, MessageError, ReplyHeader, validated
from fedchoir.methods.base import Method
from fedchoir.payload import Payload, PayloadError, check_values

MAX_HEADER = 16 * 2**20
MAX_BLOB = 2 * 2**30  # bytes of one message, unless a federation sets another limit
CheckEntries = Callable[[int, Payload], None]


@dataclass
class Envelope:
    """The content of one message, in either direction."""

    header: dict[str, Any]
    blobs: list[bytes] = field(default_factory=list)
    shared: dict[int, bytes] = field(
        default_factory=dict, repr=False
    )  # serialized payloads, by id, of several messages
    limit: int = MAX_BLOB  # bytes that its compressed payloads may have together when they are unpacked
    _known: dict[str, int] = field(default_factory=dict, repr=False)
    _unpacked: dict[int, Payload] = field(default_factory=dict, repr=False)  # compressed payloads, by number

    def add(self, payload: Payload) -> int:
        """Add a payload and return its number."""
        self.blobs.append(payload.to_bytes())
        return len(self.blobs) - 1

    def put(self, payload: Payload) -> int:
        """Add a payload unless its bytes are there already, and return its number. It must outlive the envelope."""
        if id(payload) not in self.shared:
            self.shared[id(payload)] = payload.to_bytes()
        raw = self.shared[id(payload)]
        key = hashlib.sha256(raw).hexdigest()
        if key not in self._known:
            self._known[key] = len(self.blobs)
            self.blobs.append(raw)
        return self._known[key]

    def get(
        self,
        number: Any,
        *,
        finite: bool = False,
        chain: str | None = None,
        check: Callable[[Payload], None] = lambda payload: None,
    ) -> Payload:
        """A payload by its number. ``finite``: refuse numbers that would ruin a model. ``chain`` and ``check``: as in
        `read_payload`."""
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < len(self.blobs):
            raise MessageError(f"there is no payload {number!r} in a message with {len(self.blobs)}")
        try:
            payload = self._unpacked.get(number) or self._read(number, chain, check)
            if finite:
                check_values(payload)
            return payload
        except PayloadError as error:
            raise MessageError(str(error)) from None

    def _read(self, number: int, chain: str | None, check: Callable[[Payload], None]) -> Payload:
        left = self.limit - sum(t.nbytes for payload in self._unpacked.values() for t in payload.values())
        payload = read_payload(self.blobs[number], left, chain=chain, check=check)
        if payload.wire is not None:
            self._unpacked[number] = payload  # named twice, it is unpacked once
        return payload

    @property
    def size(self) -> int:
        return sum(map(len, self.blobs))

    def text(self) -> str:
        return json.dumps(self.header, allow_nan=False)

    @classmethod
    def read(cls, text: str, blobs: Sequence[bytes], limit: int = MAX_BLOB) -> Envelope:
        """A message that arrived. Its size is checked before it is parsed."""
        size = sum(map(len, blobs))
        if size > limit or len(text) > MAX_HEADER:
            raise MessageError(f"the message has {size + len(text)} bytes, and {limit} are allowed")
        try:
            header = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:  # numbers of thousands of digits and deep nesting among them
            raise MessageError(f"the header is not JSON: {error}") from None
        if not isinstance(header, dict):
            raise MessageError("the header is not an object")
        return cls(header, list(blobs), limit=limit)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def pack_action(envelope: Envelope, action: Action, *clients: int) -> dict[str, Any]:
    """An action for one or several clients; of what is received, only their payloads are added."""
    name = action.function.__name__
    owner = getattr(action.function, "__self__", None)
    if not isinstance(owner, Method) or getattr(type(owner), name, None) is None:
        raise TypeError(f"{action.function!r} cannot be sent: a step or exchange must be a method of the Method class")
    packed: dict[str, Any] = {
        "kind": "exchange" if isinstance(action, Exchange) else "step",
        "name": name,
        "batches": [list(astuple(batch)) for batch in action.batches],
        "received": _pack_received(envelope, action.received, clients),
    }
    return packed | ({"dims": dict(action.dims)} if isinstance(action, Exchange) else {})


def _pack_received(envelope: Envelope, received: Any, clients: Sequence[int]) -> Any:
    if isinstance(received, Payload):
        return envelope.put(received)
    if isinstance(received, Mapping):
        return {str(k): _pack_received(envelope, received[k], clients) for k in clients if k in received}
    if isinstance(received, list | tuple):
        return [_pack_received(envelope, item, clients) for item in received]
    return None


def unpack_action(envelope: Envelope, packed: Mapping[str, Any], method: Method, *, finite: bool = False) -> Action:
    """The action of a message, with the functions of this process's own copy of the method. ``finite``: refuse what
    is received if a number in it is not finite or absurd."""
    header = validated(ActionHeader, packed, "the action")
    function = function_of(method, header.name)
    batches = tuple(PublicBatch(*batch) for batch in header.batches)
    chain = str(parse(method.spec.compress).down or "")
    received = _unpack_received(envelope, header.received, {"finite": finite, "chain": chain})
    if header.kind == "exchange":
        if not hasattr(function, "__sends__"):
            raise MessageError(f"{header.name} of {method.name} sends nothing: it is not an exchange")
        return Exchange(function, batches, received=received, dims=header.dims)
    return Step(function, batches, received)


def _unpack_received(envelope: Envelope, packed: Any, read: Mapping[str, Any], depth: int = 0) -> Any:
    if depth > 2:
        raise MessageError("the action is malformed: received is nested too deeply")
    if isinstance(packed, dict):
        if not all(re.fullmatch(r"[0-9]{1,9}", k) for k in packed):
            raise MessageError("the action is malformed: received has a key that is not the number of a client")
        return {int(k): _unpack_received(envelope, item, read, depth + 1) for k, item in packed.items()}
    if isinstance(packed, list):
        return [_unpack_received(envelope, item, read, depth + 1) for item in packed]
    return None if packed is None else envelope.get(packed, **read)


def function_of(method: Method, name: Any) -> Callable[..., Any]:
    """A public function of the method's class by its name; anything else is refused."""
    if not isinstance(name, str) or name.startswith("_") or not inspect.isfunction(getattr(type(method), name, None)):
        raise MessageError(f"{method.name} has no function {name!r}")
    function: Callable[..., Any] = getattr(method, name)
    return function


def pack_reply(
    payloads: Sequence[Payload],
    deferred: Mapping[int, DeferredReport],
    seconds: Mapping[str, float],
    keys: Mapping[str, Any] | None = None,
) -> Envelope:
    """A client's reply; ``deferred`` are its reports by round, ``keys`` belong to secure aggregation."""
    reports = {str(index): asdict(report) for index, report in deferred.items()}
    envelope = Envelope({"deferred": reports, "seconds": dict(seconds)} | ({"keys": dict(keys)} if keys else {}))
    envelope.header["payloads"] = [envelope.add(payload) for payload in payloads]  # equal ones too: each is counted
    return envelope


def unpack_reply(
    envelope: Envelope, chain: str | None = None, check: CheckEntries = lambda place, payload: None
) -> tuple[list[Payload], dict[int, DeferredReport], dict[str, float]]:
    """Payloads, reports and seconds of a client's reply.

    Args:
        chain: the agreed chain of what clients send; empty: none; None: any.
        check: raises `PayloadError` unless the n-th payload has the declared entries. It is called before a compressed
            payload is unpacked.
    """
    header = validated(ReplyHeader, envelope.header, "the reply")
    payloads = [
        envelope.get(number, chain=chain, check=partial(check, place)) for place, number in enumerate(header.payloads)
    ]
    deferred = {
        int(index): DeferredReport(
            report.report, None if report.evaluation is None else Evaluation.read(report.evaluation.model_dump())
        )
        for index, report in header.deferred.items()
    }
    return payloads, deferred, header.seconds


def pack_spec(spec: FederationSpec) -> dict[str, Any]:
    return asdict(spec)
