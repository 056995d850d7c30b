"""The client's side of secure aggregation: it exchanges keys with the server and masks payloads before they leave.

Secrets are kept in a store (a folder at a site, a dictionary in a simulation): the encryption key for the whole run,
the key shares for the next sum, and those of the last sum until it is unmasked. Each is used once. The client refuses
requests that would reveal more than a sum.
"""

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedchoir.payload import Payload
from fedchoir.privacy.secure_aggregation.crypto import KeyShares, Participant, SecureAggregationError
from fedchoir.privacy.secure_aggregation.peer_keys import Identity, UnverifiedPeers
from fedchoir.privacy.secure_aggregation.quantization import pack, weight_of
from fedchoir.utils.io import atomic_write

Request = Mapping[str, Any]
MASKED = "masked"  # the payload name of masked numbers


class SecureAggregationClient:
    """One client in the protocol. ``index`` is its number in the federation; signatures are valid for ``run``."""

    def __init__(
        self, index: int, store: MutableMapping[str, str], identity: Identity | None = None, run: str = ""
    ) -> None:
        self._index, self._store = index, store
        self._identity, self._run = identity or UnverifiedPeers(), run

    def exchange_keys(self, request: Request) -> dict[str, Any]:
        """Handle a message about keys."""
        kind = request.get("kind")
        if kind == "encryption_key":
            encryption_key = self._participant().encryption_key
            return {
                "encryption_key": {
                    "key": encryption_key.hex(),
                    "signature": self._identity.sign(self._signed_content(self._index, encryption_key)).hex(),
                }
            }
        if kind == "key_shares":
            return {"key_shares": self._share_keys(request)}
        if kind == "unmasking_shares":
            return {"unmasking_shares": self._unmasking_shares(request)}
        raise SecureAggregationError(
            f"unknown request {kind!r}; expected encryption_key, key_shares or unmasking_shares"
        )

    def mask_payloads(self, payloads: Sequence[Payload], request: Request) -> tuple[list[Payload], dict[str, Any]]:
        """The masked payloads, with their layout and the key shares for the next sum."""
        keys = self._pop("key_shares")
        self._check_key_shares(request)
        key_shares, weights = (
            read_all_key_shares(request["key_shares"]),
            read_weights(request["weights"], request["key_shares"]),
        )
        strict = bool(request["strict"])
        me = self._participant(keys)
        mine = {name: by_client[self._index] for name, by_client in weights.items()}
        packed = pack(payloads, lambda name: weight_of(mine, name), len(key_shares))
        masked = me.mask(packed.words, key_shares, sum_context(request), strict=strict)
        kept = {name: request[name] for name in ("sum", "key_shares", "encryption_keys", "strict")}
        self._store["pending"] = json.dumps({**keys, **kept})
        message = {"layout": packed.layout, "clipped": packed.clipped, "key_shares": self._share_keys(request)}
        return [Payload({MASKED: torch.from_numpy(masked.view("int32"))})], message

    def _share_keys(self, request: Request) -> dict[str, Any]:
        self._check_encryption_keys(request["encryption_keys"])
        me, threshold = self._participant(), int(request["threshold"])
        shares = me.share_keys(read_encryption_keys(request["encryption_keys"]), threshold)
        number = int(self._store.get("count", "0")) + 1
        self._store["count"] = str(number)
        self._store["key_shares"] = json.dumps(
            {"mask": me.mask_key.hex(), "seed": me.seed.hex(), "threshold": threshold}
        )
        signature = self._identity.sign(self._signed_content(self._index, shares.mask, shares.seed_hash, number))
        return {**write_key_shares(shares), "number": number, "signature": signature.hex()}

    def _check_encryption_keys(self, encryption_keys: Mapping[str, Mapping[str, str]]) -> None:
        """Verify that each key belongs to its site, and that no site occurs twice."""
        if len({encryption_key["name"] for encryption_key in encryption_keys.values()}) < len(encryption_keys):
            raise SecureAggregationError("refused: two keys claim to belong to one site")
        for k, key in read_encryption_keys(encryption_keys).items():
            message = encryption_keys[str(k)]
            self._identity.check(message["name"], self._signed_content(k, key), bytes.fromhex(message["signature"]))

    def _check_key_shares(self, request: Request) -> None:
        """The same for the keys of one sum; each must be newer than the last one of that site."""
        seen = json.loads(self._store.get("seen", "{}"))
        for k, shares in read_all_key_shares(request["key_shares"]).items():
            message, name = request["key_shares"][str(k)], request["encryption_keys"][str(k)]["name"]
            number = int(message["number"])
            context = self._signed_content(k, shares.mask, shares.seed_hash, number)
            self._identity.check(name, context, bytes.fromhex(message["signature"]))
            if number <= seen.get(str(k), 0):
                raise SecureAggregationError(f"refused: the keys of {name} were used before")
            seen[str(k)] = number
        self._store["seen"] = json.dumps(seen)

    def _signed_content(self, index: int, *content: bytes | int) -> bytes:
        """The signed content: keys of one client in one run."""
        fields = [item.hex() if isinstance(item, bytes) else str(item) for item in content]
        return " ".join(["fedchoir secure sum", self._run, str(index), *fields]).encode()

    def _unmasking_shares(self, request: Request) -> dict[str, Any]:
        """Shares that unmask the last sum. They are given out once."""
        stored = self._pop("pending")
        if stored["sum"] != request.get("sum"):
            raise SecureAggregationError("refused: this is not the last sum, or it was unmasked already")
        decrypted = self._participant(stored).unmasking_shares(
            read_keys(request["shares"]),
            read_encryption_keys(stored["encryption_keys"]),
            read_all_key_shares(stored["key_shares"]),
            sent=[int(k) for k in request["sent"]],
            threshold=int(stored["threshold"]),
            strict=bool(stored["strict"]),
        )
        return {"seeds": write_keys(decrypted.seeds), "keys": write_keys(decrypted.keys)}

    def _participant(self, stored: Mapping[str, Any] | None = None) -> Participant:
        if "encryption_key" not in self._store:
            self._store["encryption_key"] = secrets.token_hex(32)
        encryption_key = bytes.fromhex(self._store["encryption_key"])
        if stored is None:
            return Participant(self._index, encryption_key)
        return Participant(self._index, encryption_key, bytes.fromhex(stored["mask"]), bytes.fromhex(stored["seed"]))

    def _pop(self, name: str) -> dict[str, Any]:
        """Remove and return stored keys: they are used once, even if what follows fails."""
        try:
            text = self._store.pop(name)
        except KeyError:
            raise SecureAggregationError("refused: the keys of this sum are missing, or were used already") from None
        taken: dict[str, Any] = json.loads(text)
        return taken


class FolderStore(MutableMapping[str, str]):
    """Strings in files that only their owner can read, written atomically."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> str:
        try:
            return (self._folder / name).read_text()
        except FileNotFoundError:
            raise KeyError(name) from None

    def __setitem__(self, name: str, text: str) -> None:
        atomic_write(self._folder / name, text, private=True)

    def __delitem__(self, name: str) -> None:
        try:
            (self._folder / name).unlink()
        except FileNotFoundError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return (path.name for path in self._folder.glob("*") if path.suffix != ".part")

    def __len__(self) -> int:
        return sum(1 for _ in self)


# -- JSON messages with hexadecimal keys -------------------------------------------------------------------------------


def sum_context(request: Request) -> bytes:
    """A hash of everything that defines a sum: participants, keys and weights. Masks cancel only if all agree."""
    message = {name: request[name] for name in ("sum", "key_shares", "weights", "strict")}
    return hashlib.sha256(json.dumps(message, sort_keys=True).encode()).digest()


def write_keys(keys: Mapping[int, bytes]) -> dict[str, str]:
    return {str(k): key.hex() for k, key in keys.items()}


def read_keys(message: Mapping[str, str]) -> dict[int, bytes]:
    return {int(k): bytes.fromhex(key) for k, key in message.items()}


def read_encryption_keys(message: Mapping[str, Mapping[str, str]]) -> dict[int, bytes]:
    return {int(k): bytes.fromhex(encryption_key["key"]) for k, encryption_key in message.items()}


def write_key_shares(shares: KeyShares) -> dict[str, Any]:
    return {
        "mask": shares.mask.hex(),
        "seed_hash": shares.seed_hash.hex(),
        "shares": write_keys(shares.shares),
    }


def read_key_shares(message: Mapping[str, Any]) -> KeyShares:
    return KeyShares(
        bytes.fromhex(message["mask"]), bytes.fromhex(message["seed_hash"]), read_keys(message.get("shares", {}))
    )


def read_all_key_shares(message: Mapping[str, Mapping[str, Any]]) -> dict[int, KeyShares]:
    return {int(k): read_key_shares(item) for k, item in message.items()}


def read_weights(
    message: Mapping[str, Mapping[str, float]], participants: Mapping[str, Any]
) -> dict[str, dict[int, float]]:
    """Each participant's weight by payload name. A weight of 0 would not hide the others."""
    weights = {name: {int(k): float(w) for k, w in by_client.items()} for name, by_client in message.items()}
    for by_client in weights.values():
        if set(by_client) != {int(k) for k in participants} or not all(0 < w <= 1 for w in by_client.values()):
            raise SecureAggregationError("refused: every participant needs a weight above 0 and up to 1")
    return weights
