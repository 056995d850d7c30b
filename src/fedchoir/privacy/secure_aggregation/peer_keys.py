"""Sites sign their secure-aggregation keys and verify the keys of the others, which the server passes on."""

from pathlib import Path
from typing import Protocol

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedchoir.privacy.secure_aggregation.crypto import SecureAggregationError
from fedchoir.utils.errors import UsageError


class Identity(Protocol):
    def sign(self, content: bytes) -> bytes: ...

    def check(self, name: str, content: bytes, signature: bytes) -> None:
        """Raise `SecureAggregationError` unless the site of this name signed the content."""


class UnverifiedPeers:
    """No signatures: the server is trusted to pass on the right keys."""

    def sign(self, content: bytes) -> bytes:
        return b""

    def check(self, name: str, content: bytes, signature: bytes) -> None:
        return


class VerifiedPeers:
    """A site with its own private key, and a folder with the public keys of the others: ``NAME.pub``."""

    def __init__(self, key: Path, folder: Path) -> None:
        self._key, self._folder = key, folder

    def sign(self, content: bytes) -> bytes:
        key = serialization.load_ssh_private_key(self._key.read_bytes(), password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise UsageError(f"{self._key} is not an elliptic-curve key; fedchoir keys --site NAME makes one")
        return key.sign(content, ec.ECDSA(hashes.SHA384()))

    def check(self, name: str, content: bytes, signature: bytes) -> None:
        path = self._folder / f"{Path(name).name}.pub"
        try:
            key = serialization.load_ssh_public_key(path.read_bytes())
            if not isinstance(key, ec.EllipticCurvePublicKey):
                raise ValueError("not an elliptic-curve key")
            key.verify(signature, content, ec.ECDSA(hashes.SHA384()))
        except InvalidSignature:
            raise SecureAggregationError(f"refused: the key of {name} has a wrong signature ({path})") from None
        except (OSError, ValueError, UnsupportedAlgorithm) as error:
            raise SecureAggregationError(f"refused: {name}'s key cannot be checked with {path}: {error}") from None
