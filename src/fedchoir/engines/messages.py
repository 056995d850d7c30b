"""Messages as bytes: a JSON header and safetensors blobs, nothing pickled.

An action travels as the *name* of one of the method's functions. The receiver looks the name up in its own copy of the
method, so a message can only run what the receiver's own code offers.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedchoir.core.actions import Action, Exchange, PublicBatch, Step
from fedchoir.core.exchange import DeferredReport
from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.methods.base import Method
from fedchoir.payload import Payload, PayloadError, declared_by

MAX_HEADER = 16 * 2**20
MAX_BLOB = 2 * 2**30  # bytes of one message, unless a federation sets another limit


class MessageError(ValueError):
    """A message is malformed."""


@dataclass
class Envelope:
    """The content of one message, in either direction."""

    header: dict[str, Any]
    blobs: list[bytes] = field(default_factory=list)
    shared: dict[int, bytes] = field(
        default_factory=dict, repr=False
    )  # serialized payloads, by id, of several messages
    _known: dict[str, int] = field(default_factory=dict, repr=False)

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

    def get(self, number: Any) -> Payload:
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < len(self.blobs):
            raise MessageError(f"there is no payload {number!r} in a message with {len(self.blobs)}")
        return Payload.from_bytes(self.blobs[number])

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
        return cls(header, list(blobs))


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


def unpack_action(envelope: Envelope, packed: Mapping[str, Any], method: Method) -> Action:
    """The action of a message, with the functions of this process's own copy of the method."""
    function = function_of(method, packed["name"])
    batches = tuple(PublicBatch(*map(int, batch)) for batch in packed["batches"])
    received = _unpack_received(envelope, packed["received"])
    if packed["kind"] == "exchange":
        declared_by(function)
        return Exchange(function, batches, received=received, dims={str(k): int(v) for k, v in packed["dims"].items()})
    return Step(function, batches, received)


def _unpack_received(envelope: Envelope, packed: Any) -> Any:
    if isinstance(packed, dict):
        return {int(k): _unpack_received(envelope, item) for k, item in packed.items()}
    if isinstance(packed, list):
        return [_unpack_received(envelope, item) for item in packed]
    return None if packed is None else envelope.get(packed)


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


Name = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]*$")]
"""A name that another site sent: short, and without characters that control a terminal or the order of a line."""


class ReportHeader(BaseModel):
    """Losses of one round, and accuracies in percent if it was evaluated."""

    model_config = ConfigDict(extra="forbid", strict=True)

    report: dict[Name, float] = Field(max_length=64)
    row: list[Annotated[float, Field(ge=0, le=100)]] | None = Field(min_length=1, max_length=1000)


class ReplyHeader(BaseModel):
    """The header of a client's reply."""

    model_config = ConfigDict(extra="forbid", strict=True)

    payloads: list[int] = Field(max_length=100_000)
    deferred: dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], ReportHeader] = Field(max_length=1000)
    seconds: dict[Name, Annotated[float, Field(ge=0, le=1e9)]] = Field(max_length=16)
    keys: dict[str, Any] = {}


def unpack_reply(envelope: Envelope) -> tuple[list[Payload], dict[int, DeferredReport], dict[str, float]]:
    """Payloads, reports and seconds of a client's reply."""
    try:
        header = ReplyHeader.model_validate(envelope.header)
        payloads = [envelope.get(number) for number in header.payloads]
    except PayloadError as error:
        raise MessageError(str(error)) from None
    except ValidationError as error:
        raise MessageError(f"the reply is malformed: {first_problem(error)}") from None
    deferred = {int(index): DeferredReport(report.report, report.row) for index, report in header.deferred.items()}
    return payloads, deferred, header.seconds


def first_problem(error: ValidationError) -> str:
    """What is wrong with a message, without quoting what another site sent."""
    problem = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(str(part)[:64] for part in problem["loc"] if not isinstance(part, str) or part.isidentifier())
    return f"{where}: {problem['msg']}"


def pack_spec(spec: FederationSpec) -> dict[str, Any]:
    return asdict(spec)


def unpack_spec(packed: Mapping[str, Any]) -> FederationSpec:
    clients = tuple(ClientInfo(**info) for info in packed["clients"])
    return FederationSpec(**{**packed, "classes": tuple(packed["classes"]), "clients": clients})
