"""Values as messages between processes: JSON with tensors as safetensors blobs."""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torch import Tensor

from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.public import PublicSet
from fedchoir.data.scenario import ClientData, Scenario
from fedchoir.engines.messages import Envelope
from fedchoir.payload import Payload

CLASSES: dict[str, type] = {
    cls.__name__: cls for cls in (Scenario, ClientData, ImageSet, PublicSet, FederationSpec, ClientInfo)
}


def pack(envelope: Envelope, value: Any) -> Any:
    """A JSON value that stands for ``value``; tensors and payloads become blobs of the envelope."""
    if isinstance(value, Tensor):
        return {"tensor": envelope.add(Payload(value=value))}
    if isinstance(value, Payload):
        return {"payload": envelope.add(value)}
    if type(value).__name__ in CLASSES:
        return {type(value).__name__: {f.name: pack(envelope, getattr(value, f.name)) for f in fields(value)}}
    if isinstance(value, Mapping):
        if value and all(isinstance(item, Tensor) for item in value.values()):
            copies = {name: t.detach().cpu().clone() for name, t in value.items()}  # they may share memory
            return {"tensors": envelope.add(Payload(copies))}
        return {"dict": {key: pack(envelope, item) for key, item in value.items()}}
    return [pack(envelope, item) for item in value] if isinstance(value, list | tuple) else value


def unpack(envelope: Envelope, packed: Any) -> Any:
    """The value that `pack` packed; its tuples are lists, except in the fields of a dataclass."""
    if isinstance(packed, list):
        return [unpack(envelope, item) for item in packed]
    if not isinstance(packed, dict):
        return packed
    ((kind, content),) = packed.items()
    if kind in ("tensor", "payload", "tensors"):
        payload = envelope.get(content)
        return payload if kind == "payload" else payload["value"] if kind == "tensor" else dict(payload)
    values = {name: unpack(envelope, item) for name, item in content.items()}
    if kind == "dict":
        return values
    return CLASSES[kind](**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})


def to_frames(envelope: Envelope) -> list[bytes]:
    return [json.dumps(envelope.header).encode(), *envelope.blobs]  # a loss may be NaN


def from_frames(frames: list[bytes]) -> Envelope:
    return Envelope(json.loads(frames[0]), frames[1:])
