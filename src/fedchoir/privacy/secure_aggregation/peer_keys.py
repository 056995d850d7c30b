"""Sites sign what they send in secure aggregation, and verify what the others signed, which the server passes on."""

from pathlib import Path
from typing import Protocol

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedchoir.privacy.secure_aggregation.terms import SecureAggregationError
from fedchoir.utils.errors import UsageError


class Identity(Protocol):
    def sign(self, content: bytes) -> bytes: ...

    def check(self, name: str, content: bytes, signature: bytes) -> None:
        """Raise `SecureAggregationError` unless the site of this name signed the content."""


class UnverifiedPeers:
    """A site that verifies nothing: the server is trusted to pass on the right keys. It signs if it has a key."""

    def __init__(self, key: Path | None = None) -> None:
        self._key = key

    def sign(self, content: bytes) -> bytes:
        return b"" if self._key is None else sign(self._key, content)

    def check(self, name: str, content: bytes, signature: bytes) -> None:
        return


class VerifiedPeers:
    """A site with its own private key, and a folder with the public keys of the others: ``NAME.pub``."""

    def __init__(self, key: Path, folder: Path) -> None:
        self._key, self._folder = key, folder

    def sign(self, content: bytes) -> bytes:
        return sign(self._key, content)

    def check(self, name: str, content: bytes, signature: bytes) -> None:
        if Path(name).name != name:
            raise SecureAggregationError(f"refused: {name!r} is not the name of a site")
        unknown = f"refused: the signature of {name} cannot be checked: "  # the server gets this text: no folder in it
        try:
            key = serialization.load_ssh_public_key((self._folder / f"{name}.pub").read_bytes())
            if not isinstance(key, ec.EllipticCurvePublicKey):
                raise ValueError
            key.verify(signature, content, ec.ECDSA(hashes.SHA384()))
        except InvalidSignature:
            raise SecureAggregationError(f"refused: the signature of {name} is wrong") from None
        except OSError:
            raise SecureAggregationError(f"{unknown}this site cannot read {name}.pub") from None
        except (ValueError, UnsupportedAlgorithm):
            raise SecureAggregationError(f"{unknown}its {name}.pub is not an elliptic-curve key") from None


def sign(path: Path, content: bytes) -> bytes:
    """A signature with an OpenSSH private key."""
    key = serialization.load_ssh_private_key(path.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UsageError(f"{path} is not an elliptic-curve key; fedchoir keys --site NAME makes one")
    return key.sign(content, ec.ECDSA(hashes.SHA384()))
