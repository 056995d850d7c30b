"""Messages as bytes: a JSON header and safetensors blobs. Nothing that could run on the other side, nothing pickled.

An action travels as the *name* of one of the method's functions: a site looks the name up in its own copy of the
method, so a message can make it do only what its own code offers.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from typing import Any

from fedchoir.core.actions import Action, Exchange, PublicBatch, Step
from fedchoir.core.exchange import DeferredReport
from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.methods.base import Method
from fedchoir.payload import Payload, PayloadError, declared_by

MAX_HEADER = 16 * 2**20
MAX_BLOB = 2 * 2**30  # bytes that one message may hold unless a federation says otherwise


class MessageError(ValueError):
    """A message is not what it should be."""


@dataclass
class Envelope:
    """What travels in one message, in either direction."""

    header: dict[str, Any]
    blobs: list[bytes] = field(default_factory=list)
    shared: dict[int, bytes] = field(default_factory=dict, repr=False)  # payloads packed for other letters already
    _known: dict[str, int] = field(default_factory=dict, repr=False)

    def add(self, payload: Payload) -> int:
        """Add a payload and return its number."""
        self.blobs.append(payload.to_bytes())
        return len(self.blobs) - 1

    def put(self, payload: Payload) -> int:
        """Add a payload and return its number; the same bytes are added once. (The payload must outlive the letter.)"""
        raw = self.shared.setdefault(id(payload), b"") or payload.to_bytes()
        self.shared[id(payload)] = raw
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
        """A letter that arrived. Its size is looked at before anything in it is."""
        size = sum(map(len, blobs))
        if size > limit or len(text) > MAX_HEADER:
            raise MessageError(f"the message has {size + len(text)} bytes, and {limit} are allowed")
        try:
            header = json.loads(text)
        except json.JSONDecodeError as error:
            raise MessageError(f"the header is not JSON: {error}") from None
        if not isinstance(header, dict):
            raise MessageError("the header is not an object")
        return cls(header, list(blobs))


# -- actions -----------------------------------------------------------------------------------------------------------


def pack_action(letter: Envelope, action: Action, *clients: int) -> dict[str, Any]:
    """An action for one client, or for several: of what is heard, only what is for them travels."""
    name = action.function.__name__
    owner = getattr(action.function, "__self__", None)
    if not isinstance(owner, Method) or getattr(type(owner), name, None) is None:
        raise TypeError(f"{action.function!r} cannot travel: a step or exchange must be a method of the Method class")
    packed: dict[str, Any] = {
        "kind": "exchange" if isinstance(action, Exchange) else "step",
        "name": name,
        "batches": [list(astuple(batch)) for batch in action.batches],
        "heard": _pack_heard(letter, action.received, clients),
    }
    if isinstance(action, Exchange):
        packed["dims"] = dict(action.dims)
    return packed


def _pack_heard(letter: Envelope, received: Any, clients: Sequence[int]) -> Any:
    if isinstance(received, Payload):
        return letter.put(received)
    if isinstance(received, Mapping):
        return {str(k): _pack_heard(letter, received[k], clients) for k in clients if k in received}
    if isinstance(received, list | tuple):
        return [_pack_heard(letter, part, clients) for part in received]
    return None


def unpack_action(letter: Envelope, packed: Mapping[str, Any], method: Method) -> Action:
    """The action of a message, with functions of this site's own copy of the method."""
    function = function_of(method, packed["name"])
    batches = tuple(PublicBatch(*map(int, batch)) for batch in packed["batches"])
    received = _unpack_heard(letter, packed["heard"])
    if packed["kind"] == "exchange":
        declared_by(function)
        return Exchange(function, batches, received=received, dims={str(k): int(v) for k, v in packed["dims"].items()})
    return Step(function, batches, received)


def _unpack_heard(letter: Envelope, packed: Any) -> Any:
    if isinstance(packed, dict):
        return {int(k): _unpack_heard(letter, part) for k, part in packed.items()}
    if isinstance(packed, list):
        return [_unpack_heard(letter, part) for part in packed]
    return None if packed is None else letter.get(packed)


def function_of(method: Method, name: Any) -> Callable[..., Any]:
    """A public function of the method's class by its name; anything else is refused."""
    if not isinstance(name, str) or name.startswith("_") or not inspect.isfunction(getattr(type(method), name, None)):
        raise MessageError(f"{method.name} has no function {name!r}")
    function: Callable[..., Any] = getattr(method, name)
    return function


# -- replies -----------------------------------------------------------------------------------------------------------


def pack_reply(
    parts: Sequence[Payload],
    news: Mapping[int, DeferredReport],
    seconds: Mapping[str, float],
    keys: Mapping[str, Any] | None = None,
) -> Envelope:
    letter = Envelope({"news": {str(index): asdict(told) for index, told in news.items()}, "seconds": dict(seconds)})
    letter.header["parts"] = [letter.add(part) for part in parts]  # counted one by one: no sharing
    if keys:
        letter.header["keys"] = dict(keys)
    return letter


def unpack_reply(letter: Envelope) -> tuple[list[Payload], dict[int, DeferredReport], dict[str, float]]:
    header = letter.header
    try:
        parts = [letter.get(number) for number in header["parts"]]
        news = {
            int(index): DeferredReport(
                {str(k): float(v) for k, v in told["report"].items()},
                None if told["row"] is None else [float(v) for v in told["row"]],
            )
            for index, told in header["news"].items()
        }
        return parts, news, {str(k): float(v) for k, v in header["seconds"].items()}
    except PayloadError as error:
        raise MessageError(str(error)) from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MessageError(f"the reply is malformed: {type(error).__name__}: {error}") from None


# -- what everyone knows -----------------------------------------------------------------------------------------------


def pack_task(task: FederationSpec) -> dict[str, Any]:
    return asdict(task)


def unpack_task(packed: Mapping[str, Any]) -> FederationSpec:
    cards = tuple(ClientInfo(**card) for card in packed["clients"])
    return FederationSpec(**{**packed, "classes": tuple(packed["classes"]), "clients": cards})
