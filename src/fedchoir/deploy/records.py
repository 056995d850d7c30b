"""Envelopes as Flower records: a header text and raw bytes. Flower's own array formats are never decoded."""

from collections.abc import Sequence
from typing import NamedTuple

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedchoir.engines.messages import MessageError

ACTIONS = "train.actions"  # message type: actions for a client to run
SITE_INFO = "query.site_info"  # message type: a question about a site, before it takes part
EXTRA_TTL = 30.0  # a message's time to live is its deadline and these seconds, in which the reply may arrive


def to_records(text: str, blobs: Sequence[bytes], **signed: bytes | int | float) -> RecordDict:
    """A message. ``signed``: what a node needs to verify it (`signature_of`)."""
    arrays = {f"{n:06d}": Array("uint8", (len(raw),), "fedchoir.safetensors", raw) for n, raw in enumerate(blobs)}
    return RecordDict({"header": ConfigRecord({"text": text, **signed}), "blobs": ArrayRecord(arrays)})


def from_records(records: RecordDict, limit: int) -> tuple[str, list[bytes]]:
    """Header text and bytes of a message with at most ``limit`` bytes."""
    try:
        text = str(records.config_records["header"]["text"])
        arrays = records.array_records["blobs"]
        blobs = [arrays[name].data for name in sorted(arrays)]
    except (KeyError, TypeError, AttributeError) as error:
        raise MessageError(f"the message is malformed: {error}") from None
    size = len(text) + sum(map(len, blobs))
    if size > limit:
        raise MessageError(f"the message has {size} bytes, and {limit} are allowed")
    return text, blobs


class Signature(NamedTuple):
    """A message's certificate and signature, when it was sent (ns) and its deadline (s); empty where missing."""

    certificate: bytes = b""
    signature: bytes = b""
    sent: int = 0
    deadline: float = 0.0


def signature_of(records: RecordDict) -> Signature:
    header = records.config_records["header"]
    found = {name: header.get(name) for name in Signature._fields}
    kinds = {"certificate": bytes, "signature": bytes, "sent": int, "deadline": float}
    return Signature(**{name: value for name, value in found.items() if isinstance(value, kinds[name])})  # type: ignore[arg-type]
