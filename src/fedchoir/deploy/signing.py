"""Signatures that bind every message and its type to the federation's server, one Flower run and one node.

Anyone who can reach a SuperLink may start runs on it. A node refuses a message unless it is signed with a certificate
of the federation's authority, for this run and this node, so a foreign run gets nothing from a site.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedchoir.engines.messages import MessageError
from fedchoir.utils.errors import UsageError


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
        except ValueError:
            raise UsageError(f"{key} is not an elliptic-curve private key; fedchoir keys creates one") from None

    def sign(self, run: int, node: int, message_type: str, text: str, blobs: Sequence[bytes]) -> bytes:
        return self.key.sign(_digest(run, node, message_type, text, blobs), ec.ECDSA(hashes.SHA384()))


def verify_signature(
    authority: Path,
    certificate: bytes,
    signature: bytes,
    run: int,
    node: int,
    message_type: str,
    text: str,
    blobs: Sequence[bytes],
) -> None:
    """Raise `MessageError` unless a server of this authority signed the message for this type, run and node."""
    ca = x509.load_pem_x509_certificate(authority.read_bytes())
    try:
        server = x509.load_pem_x509_certificate(certificate)
        server.verify_directly_issued_by(ca)
        key = server.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise TypeError("not an elliptic-curve key")
        key.verify(signature, _digest(run, node, message_type, text, blobs), ec.ECDSA(hashes.SHA384()))
    except (ValueError, TypeError, InvalidSignature):
        raise MessageError("the message is not signed by this federation's server") from None
    now = datetime.datetime.now(datetime.UTC)
    if not server.not_valid_before_utc <= now <= server.not_valid_after_utc:
        raise MessageError("the server's certificate has expired: fedchoir keys creates a new one")


def _digest(run: int, node: int, message_type: str, text: str, blobs: Sequence[bytes]) -> bytes:
    digest = hashlib.sha384(f"fedchoir\n{run}\n{node}\n{message_type}\n{len(blobs)}\n".encode())
    for part in (text.encode(), *blobs):
        digest.update(hashlib.sha384(part).digest())
    return digest.digest()
