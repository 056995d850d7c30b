"""The primitives: key streams, encryption and keys with which nobody can agree on a secret."""

from __future__ import annotations

import pytest

from fedchoir.privacy.secure_aggregation.crypto import check_public_key, commitment, decrypt, encrypt, key_stream
from fedchoir.privacy.secure_aggregation.terms import SecureAggregationError


def test_key_streams_are_chacha20() -> None:
    """The first keystream block of ChaCha20 for the all-zero key and nonce, as in RFC 8439, appendix A.1."""
    assert key_stream(bytes(32), 4).tobytes().hex() == "76b8e0ada0f13d90405d6ae55386bd28"


def test_encrypted_content_cannot_be_changed_or_moved() -> None:
    key = bytes(range(32))
    encrypted = encrypt(key, b"share", b"0>1")
    assert decrypt(key, encrypted, b"0>1") == b"share"
    flipped = encrypted[:-1] + bytes([encrypted[-1] ^ 1])
    for wrong, about in ((encrypted, b"0>2"), (flipped, b"0>1"), (b"short", b"0>1"), (b"", b"0>1")):
        with pytest.raises(SecureAggregationError, match="altered"):
            decrypt(key, wrong, about)


def test_commitments_separate_their_fields() -> None:
    assert len({commitment(b"ab", b"c"), commitment(b"a", b"bc"), commitment(b"abc"), commitment()}) == 4


@pytest.mark.parametrize("key", [bytes(32), b"\x01" + bytes(31), bytes(31), b"", bytes(33)])
def test_keys_of_small_order_or_another_length_are_refused(key: bytes) -> None:
    """With such a key every other client would fail to mask its payload: one client could stop every sum."""
    with pytest.raises(SecureAggregationError, match="not a usable X25519 key"):
        check_public_key(key)
