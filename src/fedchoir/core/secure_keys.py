"""The server's collection of public keys and encrypted key shares for secure aggregation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fedchoir.core.exchange import RoundStats
from fedchoir.core.interfaces import SecureEngine
from fedchoir.privacy.secure_aggregation.crypto import check_public_key
from fedchoir.privacy.secure_aggregation.messages import KEYS_OF_A_SITE, Request, read_key_shares
from fedchoir.privacy.secure_aggregation.protocol import KeyShares
from fedchoir.privacy.secure_aggregation.terms import MIN_CLIENTS, SecureAggregationError

MALFORMED = (KeyError, TypeError, ValueError, AttributeError)
"""What reading a malformed reply raises."""


class KeyCollection:
    """Encryption keys of all clients, and their key shares for the next sum."""

    def __init__(self, engine: SecureEngine, names: Sequence[str], threshold: int) -> None:
        self._engine, self._names, self._threshold = engine, names, threshold
        self._encryption_keys: dict[int, dict[str, str]] = {}  # name, public key, the site's signature
        self._unknown = set(range(len(names)))  # clients whose encryption key is missing or may be lost
        self._key_shares: dict[int, KeyShares] = {}  # for the next sum
        self._public: dict[int, dict[str, Any]] = {}  # the same as the participants receive them

    def collect(self, clients: Sequence[int], stats: RoundStats) -> dict[int, str]:
        """Ask clients for the keys that are missing for the next sum; returns why some sent none."""
        unknown: dict[int, Request] = {k: {"kind": "encryption_key"} for k in clients if k in self._unknown}
        failures = self.ask(unknown, self._take_encryption_key, stats)
        if len(self._encryption_keys) < max(MIN_CLIENTS, self._threshold):
            return failures
        request = {"kind": "key_shares", "encryption_keys": self.encryption_keys(), "threshold": self._threshold}
        without: dict[int, Request] = {k: request for k in clients if k not in self._unknown | self._key_shares.keys()}
        return failures | self.ask(without, lambda k, message: self.add(k, message["key_shares"]), stats)

    def ask(
        self, requests: Mapping[int, Request], take: Callable[[int, Mapping[str, Any]], None], stats: RoundStats
    ) -> dict[int, str]:
        """Send each client a message about keys; returns which clients failed, and why."""
        failures: dict[int, str] = {}
        stats.messages += len(requests)
        stats.add_bytes(down=sum(map(size, requests.values())))
        for reply in self._engine.exchange_keys(requests) if requests else ():
            stats.add_bytes(up=size(reply.keys))
            try:
                if reply.error:
                    raise SecureAggregationError(reply.error)
                take(reply.client, reply.keys)
            except MALFORMED as error:
                failures[reply.client] = describe(error)
                self.forget(reply.client)
        return failures

    def encryption_keys(self) -> dict[str, dict[str, str]]:
        return {str(k): encryption_key for k, encryption_key in self._encryption_keys.items()}

    def public_keys(self, participants: Iterable[int]) -> dict[str, dict[str, Any]]:
        """What participants learn about each other's keys for a sum."""
        return {str(k): self._public[k] for k in participants}

    def __contains__(self, client: int) -> bool:
        return client in self._key_shares

    def add(self, client: int, message: Mapping[str, Any]) -> None:
        """Take a client's keys for the next sum."""
        shares = read_key_shares(message)
        check_public_key(shares.mask)
        for part in (shares.shares, shares.key_hashes, shares.seed_hashes):
            if part.keys() != self._encryption_keys.keys():
                raise SecureAggregationError("it did not send a share for every client")
        self._key_shares[client] = shares
        public = {**message, "commitment": shares.commitment.hex()}
        self._public[client] = {name: public[name] for name in KEYS_OF_A_SITE}

    def take(self, participants: Iterable[int]) -> dict[int, KeyShares]:
        """The keys for a sum. They are used once."""
        return {k: self._key_shares.pop(k) for k in participants}

    def forget(self, client: int) -> None:
        """A client that failed may have lost its keys: ask for them again."""
        self._unknown.add(client)
        self._key_shares.pop(client, None)

    def _take_encryption_key(self, client: int, message: Mapping[str, Any]) -> None:
        given = {part: message["encryption_key"][part] for part in ("key", "signature")}
        check_public_key(bytes.fromhex(given["key"]))
        if client not in self._encryption_keys or self._encryption_keys[client]["key"] != given["key"]:
            self._key_shares.clear()  # they hold shares for the old set of keys
        self._encryption_keys[client] = {"name": self._names[client], **given}
        self._unknown.discard(client)


def size(message: Mapping[str, Any]) -> int:
    return len(json.dumps(message)) if message else 0


def describe(error: BaseException) -> str:
    plain = isinstance(error, ValueError) and str(error)
    return str(error) if plain else f"its message about keys is malformed: {error!r}"
