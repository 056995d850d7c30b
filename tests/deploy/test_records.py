"""Envelopes as Flower records."""

from __future__ import annotations

import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedchoir.deploy.records import Signature, from_records, signature_of, to_records
from fedchoir.engines.messages import MessageError

BLOBS = [bytes([number]) * number for number in range(12)]


def test_text_and_blobs_arrive_as_they_were_sent() -> None:
    signed = Signature(b"certificate", b"signature", 10**18, 60.0)
    records = to_records('{"a": 1}', BLOBS, **signed._asdict())
    assert from_records(records, 1000) == ('{"a": 1}', BLOBS)
    assert signature_of(records) == signed


def test_a_message_without_a_signature_has_an_empty_one() -> None:
    assert signature_of(to_records("{}", [])) == Signature(b"", b"", 0, 0.0)
    malformed = {"certificate": 7, "signature": "text", "sent": "now", "deadline": b"later"}
    assert signature_of(RecordDict({"header": ConfigRecord(malformed)})) == Signature()


def test_the_size_is_limited() -> None:
    records = to_records("{}", [b"x" * 98])
    assert from_records(records, 100)
    with pytest.raises(MessageError, match="100 bytes, and 99 are allowed"):
        from_records(records, 99)


@pytest.mark.parametrize("records", [{}, {"header": ConfigRecord({"text": "{}"})}, {"blobs": ArrayRecord()}])
def test_malformed_records_are_refused(records: dict[str, ArrayRecord | ConfigRecord]) -> None:
    with pytest.raises(MessageError, match="malformed"):
        from_records(RecordDict(records), 1000)  # type: ignore[arg-type]
