"""Messages of secure aggregation: JSON with hexadecimal keys."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from fedchoir.privacy.secure_aggregation.protocol import KeyShares, UnmaskingShares
from fedchoir.privacy.secure_aggregation.terms import Weights

Request = Mapping[str, Any]
MASKED = "masked"  # the payload name of masked numbers
KEYS_OF_A_SITE = ("mask", "commitment", "number", "signature")
"""What a participant learns about another participant's keys."""


def sum_context(request: Request, weights: Weights) -> bytes:
    """A hash of everything that defines a sum: exchange, participants, keys, weights and, in a strict sum, what the
    participants have received before. Masks cancel, and signatures are valid, only among participants whose contexts
    are equal."""
    names = ("sum", "exchange", "key_shares", "encryption_keys", "threshold", "strict")
    message = {**{name: request[name] for name in names}, "weights": weights, "received": request.get("received", "")}
    return hashlib.sha256(json.dumps(message, sort_keys=True).encode()).digest()


def signed_content(kind: str, run: str, index: int, *content: bytes | int | str) -> bytes:
    """What client ``index`` signs. ``kind`` determines what the rest means: no signature serves two purposes."""
    fields = [item.hex() if isinstance(item, bytes) else str(item) for item in content]
    return " ".join(["fedchoir secure sum", kind, run, str(index), *fields]).encode()


def list_of(senders: Iterable[int]) -> str:
    """A list of senders as it is signed."""
    return ",".join(map(str, sorted(senders)))


def write_keys(keys: Mapping[int, bytes]) -> dict[str, str]:
    return {str(k): key.hex() for k, key in keys.items()}


def read_keys(message: Mapping[str, str]) -> dict[int, bytes]:
    return {int(k): bytes.fromhex(key) for k, key in message.items()}


def read_encryption_keys(message: Mapping[str, Mapping[str, str]]) -> dict[int, bytes]:
    return {int(k): bytes.fromhex(encryption_key["key"]) for k, encryption_key in message.items()}


def read_masks(message: Mapping[str, Mapping[str, Any]]) -> dict[int, bytes]:
    """The public mask keys of all participants."""
    return {int(k): bytes.fromhex(keys["mask"]) for k, keys in message.items()}


def write_key_shares(shares: KeyShares) -> dict[str, Any]:
    return {
        "mask": shares.mask.hex(),
        "seed_hash": shares.seed_hash.hex(),
        "shares": write_keys(shares.shares),
        "hashes": write_keys({k: shares.key_hashes[k] + shares.seed_hashes[k] for k in shares.shares}),
    }


def read_key_shares(message: Mapping[str, Any]) -> KeyShares:
    hashes = read_keys(message["hashes"])
    return KeyShares(
        bytes.fromhex(message["mask"]),
        bytes.fromhex(message["seed_hash"]),
        read_keys(message["shares"]),
        {k: pair[:32] for k, pair in hashes.items()},
        {k: pair[32:] for k, pair in hashes.items()},
    )


def write_unmasking_shares(shares: UnmaskingShares) -> dict[str, Any]:
    return {"seeds": write_keys(shares.seeds), "keys": write_keys(shares.keys), "invalid": sorted(shares.invalid)}


def read_unmasking_shares(message: Mapping[str, Any]) -> UnmaskingShares:
    return UnmaskingShares(
        read_keys(message["seeds"]), read_keys(message["keys"]), frozenset(int(k) for k in message["invalid"])
    )
