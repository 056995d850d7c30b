"""The primitives of secure aggregation: key agreement, key streams, encryption and commitments."""

import hashlib
import secrets

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedchoir.privacy.secure_aggregation.fixed_point import Words
from fedchoir.privacy.secure_aggregation.terms import SecureAggregationError

NONCE_BYTES = 12
_ANY_KEY = X25519PrivateKey.generate()  # a key that fails with one private key fails with all


def key_stream(key: bytes, count: int) -> Words:
    """``count`` pseudo-random words (ChaCha20). A key is used for one sum only, so the nonce is 0."""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(cipher.update(bytes(4 * count)), dtype="<u4").astype(np.uint32)


def shared_key(key: X25519PrivateKey, public: bytes, purpose: bytes) -> bytes:
    """The key that two participants share (X25519 and HKDF)."""
    shared = key.exchange(X25519PublicKey.from_public_bytes(public))
    return HKDF(hashes.SHA256(), 32, salt=None, info=b"fedchoir secure sum " + purpose).derive(shared)


def encrypt(key: bytes, content: bytes, about: bytes) -> bytes:
    """Content that only a holder of the key can read or change; ``about`` is authenticated with it, but not sent."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, content, about)


def decrypt(key: bytes, encrypted: bytes, about: bytes) -> bytes:
    try:
        return ChaCha20Poly1305(key).decrypt(encrypted[:NONCE_BYTES], encrypted[NONCE_BYTES:], about)
    except (InvalidTag, ValueError):
        raise SecureAggregationError("an encrypted share was altered") from None


def commitment(*content: bytes) -> bytes:
    """A hash that fixes secrets of 32 random bytes or more without revealing them."""
    digest = hashlib.sha256(b"fedchoir commitment")
    for item in content:
        digest.update(len(item).to_bytes(4, "big") + item)
    return digest.digest()


def check_public_key(public: bytes) -> None:
    """Raise `SecureAggregationError` unless this is an X25519 key with which others can agree on a key."""
    try:
        _ANY_KEY.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:  # another length, or one of the few points of small order
        raise SecureAggregationError("its key is not a usable X25519 key") from None
