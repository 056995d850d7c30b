"""Signatures that bind every message to the federation's server, one Flower run, one node, its type and its time.

Anyone who can reach a SuperLink may start runs on it. A node refuses a message unless it is signed with a certificate
of the federation's authority, for this run and this node, so a foreign run gets nothing from a site.
"""

from __future__ import annotations

import datetime
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedchoir.engines.messages import MessageError
from fedchoir.utils.errors import UsageError
from fedchoir.utils.io import atomic_write

CLOCK_SECONDS = 300.0  # by which the clocks of server and site may differ


@dataclass(frozen=True)
class Signer:
    """The server's certificate and key: signs the messages that it sends."""

    certificate: bytes
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def read(cls, certificate: Path, key: Path) -> Signer:
        try:
            loaded = serialization.load_pem_private_key(key.read_bytes(), password=None)
            if not isinstance(loaded, ec.EllipticCurvePrivateKey):
                raise ValueError("another kind of key")
            return cls(certificate.read_bytes(), loaded)
        except OSError as error:
            raise UsageError(f"cannot read {error.filename}: {error.strerror}; fedchoir keys creates it") from None
        except (ValueError, UnsupportedAlgorithm):
            raise UsageError(f"{key} is not an elliptic-curve private key; fedchoir keys creates one") from None

    def sign(self, message: SignedMessage) -> bytes:
        return self.key.sign(message.digest(), ec.ECDSA(hashes.SHA384()))


@dataclass(frozen=True)
class SignedMessage:
    """Everything that a signature covers."""

    run: int  # of Flower
    node: int
    message_type: str
    sent: int  # nanoseconds since 1970; larger for every message
    deadline: float  # seconds after ``sent``
    text: str
    blobs: Sequence[bytes]

    def digest(self) -> bytes:
        facts = (self.run, self.node, self.message_type, self.sent, self.deadline, len(self.blobs))
        digest = hashlib.sha384("\n".join(["fedchoir", *map(str, facts), ""]).encode())
        for part in (self.text.encode(), *self.blobs):
            digest.update(hashlib.sha384(part).digest())
        return digest.digest()


def verify_signature(authority: Path, certificate: bytes, signature: bytes, message: SignedMessage) -> None:
    """Raise `MessageError` unless a server of this authority signed the message."""
    ca = x509.load_pem_x509_certificate(authority.read_bytes())
    try:
        server = x509.load_pem_x509_certificate(certificate)
        server.verify_directly_issued_by(ca)
        key = server.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise TypeError("not an elliptic-curve key")
        key.verify(signature, message.digest(), ec.ECDSA(hashes.SHA384()))
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.InvalidVersion):
        raise MessageError("the message is not signed by this federation's server") from None
    now = datetime.datetime.now(datetime.UTC)
    if not server.not_valid_before_utc <= now <= server.not_valid_after_utc:
        raise MessageError("the server's certificate has expired: fedchoir keys creates a new one")


class Freshness:
    """Refuses messages that are late or were received before. ``path`` holds when the newest message was sent."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self, message: SignedMessage) -> None:
        """Raise `MessageError` unless the message is newer than all before it and its deadline is ahead."""
        age = (time.time_ns() - message.sent) / 1e9
        if age > message.deadline + CLOCK_SECONDS:
            raise MessageError(
                f"refused: the message is {age:.0f} s old, and its deadline was {message.deadline:g} s (or a clock is "
                "wrong)"
            )
        if age < -CLOCK_SECONDS:
            raise MessageError(f"refused: the message is from {-age:.0f} s ahead: the server's or this clock is wrong")
        newest = int(self._path.read_text()) if self._path.exists() else 0
        if message.sent <= newest:
            raise MessageError("refused: this message, or a newer one, was received before")
        atomic_write(self._path, str(message.sent))
