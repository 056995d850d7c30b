"""Values as messages between processes: JSON with tensors as safetensors blobs."""

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from torch import Tensor

from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.core.scores import Evaluation, TestScore, Validation
from fedchoir.data.modalities import READERS, reader
from fedchoir.data.public import PublicSet
from fedchoir.data.scenario import ClientData, Scenario
from fedchoir.engines.messages import Envelope
from fedchoir.payload import Payload
from fedchoir.utils.input_spec import InputSpec


@cache
def dataclasses_by_name() -> dict[str, type]:
    """The dataclasses that a message may contain."""
    samples = [cls for modality in READERS for cls in reader(modality).TYPES]
    facts = (FederationSpec, ClientInfo, InputSpec, Evaluation, TestScore, Validation)
    known = (Scenario, ClientData, PublicSet, *facts, *samples)
    return {cls.__name__: cls for cls in known}


def pack(envelope: Envelope, value: Any) -> Any:
    """A JSON value that stands for ``value``; tensors and payloads become blobs of the envelope."""
    if isinstance(value, Tensor):
        return {"tensor": envelope.add(Payload(value=value))}
    if isinstance(value, Payload):
        return {"payload": envelope.add(value)}
    if type(value).__name__ in dataclasses_by_name():
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
    return dataclasses_by_name()[kind](**{name: _tuples(value) for name, value in values.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def to_frames(envelope: Envelope) -> list[bytes]:
    return [json.dumps(envelope.header).encode(), *envelope.blobs]  # a loss may be NaN


def from_frames(frames: list[bytes]) -> Envelope:
    return Envelope(json.loads(frames[0]), frames[1:])
