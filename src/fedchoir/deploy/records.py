"""Letters as Flower's records: a text, and bytes as they are. Flower's own array formats are never decoded."""

from __future__ import annotations

from collections.abc import Sequence

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedchoir.engines.messages import Envelope, MessageError

ACT = "train.act"
CARD = "query.card"
_STYPE = "fedchoir.safetensors"


def to_records(
    text: str, blobs: Sequence[bytes], *, certificate: bytes = b"", signature: bytes = b"", deadline: float = 0.0
) -> RecordDict:
    arrays = {f"{n:06d}": Array("uint8", (len(raw),), _STYPE, raw) for n, raw in enumerate(blobs)}
    about = ConfigRecord({"text": text, "certificate": certificate, "signature": signature, "deadline": deadline})
    return RecordDict({"about": about, "blobs": ArrayRecord(arrays)})


def seal_of(records: RecordDict) -> tuple[bytes, bytes]:
    """Certificate and signature of a message; empty where there are none."""
    about = records.config_records["about"]
    certificate, signature = about.get("certificate"), about.get("signature")
    return (
        certificate if isinstance(certificate, bytes) else b"",
        signature if isinstance(signature, bytes) else b"",
    )


def deadline_of(records: RecordDict) -> float:
    """Seconds that the answer may take; 0 if the message does not say."""
    value = records.config_records["about"].get("deadline")
    return float(value) if isinstance(value, int | float) else 0.0


def from_records(records: RecordDict, limit: int) -> tuple[str, list[bytes]]:
    """Text and bytes of a message whose size is allowed."""
    try:
        text = str(records.config_records["about"]["text"])
        arrays = records.array_records["blobs"]
        blobs = [arrays[name].data for name in sorted(arrays)]
    except (KeyError, TypeError, AttributeError) as error:
        raise MessageError(f"the message is malformed: {error}") from None
    size = len(text) + sum(map(len, blobs))
    if size > limit:
        raise MessageError(f"the message has {size} bytes, and {limit} are allowed")
    return text, blobs


def letter_from(records: RecordDict, limit: int) -> Envelope:
    return Envelope.read(*from_records(records, limit), limit)
