"""The server's side of secure aggregation: it collects key shares, adds masked payloads, and removes the masks.

The server sees public keys, encrypted shares and masked numbers. While every client replies, a sum costs no message of
its own: key shares for the next sum come with the masked payloads of this one. A strict sum, or one with dropouts,
takes one more message to each remaining client.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fedchoir.core.actions import Action, Exchange
from fedchoir.core.eligibility import MIN_CLIENTS, mean_weights
from fedchoir.core.exchange import Reply, RoundStats
from fedchoir.core.interfaces import SecureEngine
from fedchoir.payload import PayloadError
from fedchoir.privacy.secure_aggregation.client import (
    MASKED,
    Request,
    read_key_shares,
    read_keys,
    sum_context,
    write_keys,
)
from fedchoir.privacy.secure_aggregation.crypto import (
    KeyShares,
    SecureAggregationError,
    UnmaskingShares,
    Words,
    majority,
    unmask,
)
from fedchoir.privacy.secure_aggregation.quantization import Layout, empty_payloads, unpack_mean, weight_of
from fedchoir.utils.errors import QuorumError, UsageError

MALFORMED = (KeyError, TypeError, ValueError, AttributeError)
"""What reading a malformed reply raises."""
Check = Callable[[Reply], str]
"""Why a reply does not match its declaration; empty where it does."""


class SecureExchange:
    """Runs exchanges as secure sums. Its state need not outlive the process: clients agree on new keys at once."""

    def __init__(self, engine: SecureEngine, names: Sequence[str], method: str, *, strict: bool, quorum: float) -> None:
        self._engine, self._names, self._method = engine, list(names), method
        self._strict, self._quorum = strict, quorum
        self._threshold = majority(len(names))
        self._encryption_keys: dict[int, dict[str, str]] = {}  # name, public key, the site's signature
        self._unknown_keys = set(range(len(names)))  # clients whose encryption key is missing or may be lost
        self._key_shares: dict[int, KeyShares] = {}  # for the next sum
        self._signed: dict[int, dict[str, Any]] = {}  # the same as the participants receive them

    def exchange(
        self,
        exchange: Exchange,
        actions: Sequence[Action],
        clients: Sequence[int],
        round_index: int,
        stats: RoundStats,
        check: Check,
        received: Callable[[Iterator[Reply]], Iterator[Reply]],
    ) -> Any:
        """The mean of the clients' payloads, without seeing any single one."""
        weights = self._weights(exchange)
        failures = self._prepare_keys(clients, stats)
        participants = [k for k in clients if k in self._key_shares and all(w[k] > 0 for w in weights.values())]
        for k in [k for k in clients if k not in participants]:
            self._leave_out(k, exchange, failures.get(k, "it has no weight in the mean"), stats)
        self._require_quorum(
            len(participants), max(MIN_CLIENTS, self._threshold), "sent keys for", exchange, clients, stats
        )
        key_shares = {k: self._key_shares.pop(k) for k in participants}
        request = self._request(key_shares, weights)
        masking = dict.fromkeys(participants, request)
        stats.add_bytes(down=sum(map(_size, masking.values())))
        total = MaskedTotal()
        for reply in received(self._engine.execute(clients, actions, round_index, masking)):
            if reply.client in key_shares:
                self._add_reply(reply, total, exchange, check, stats)
        needed = max(self._threshold, self._quorum * len(clients))
        self._require_quorum(len(total.sent), needed, "sent a usable payload for", exchange, clients, stats)
        words = self._unmask(total, key_shares, request, exchange, stats)
        shares = {name: sum(by[str(k)] for k in total.sent) for name, by in request["weights"].items()}
        result = unpack_mean(words, total.layout, lambda name: weight_of(shares, name), len(participants))
        return result if exchange.batches else result[0]

    def _weights(self, exchange: Exchange) -> dict[str, Sequence[float]]:
        weights = mean_weights(exchange.aggregator(), len(self._names))
        if weights is None:
            raise UsageError(
                f"secure = true is not possible with {self._method}: its exchange {exchange.function.__name__} needs "
                "individual payloads, and secure aggregation gives only their mean"
            )
        return weights

    # -- keys ------------------------------------------------------------------------------------------------------

    def _prepare_keys(self, clients: Sequence[int], stats: RoundStats) -> dict[int, str]:
        """Collect key shares for the next sum from everyone; returns why some clients sent none."""
        unknown: dict[int, Request] = {k: {"kind": "encryption_key"} for k in clients if k in self._unknown_keys}
        failures = self._exchange_keys(unknown, self._take_encryption_key, stats)
        if len(self._encryption_keys) < max(MIN_CLIENTS, self._threshold):
            return failures
        requested = {
            "kind": "key_shares",
            "encryption_keys": self._encryption_key_table(),
            "threshold": self._threshold,
        }
        without: dict[int, Request] = {
            k: requested for k in clients if k not in self._unknown_keys | self._key_shares.keys()
        }
        return failures | self._exchange_keys(
            without, lambda k, message: self._take_key_shares(k, message["key_shares"]), stats
        )

    def _exchange_keys(
        self, requests: Mapping[int, Request], take: Callable[[int, Mapping[str, Any]], None], stats: RoundStats
    ) -> dict[int, str]:
        """Send each client a message about keys; returns which clients failed, and why."""
        failures: dict[int, str] = {}
        stats.messages += len(requests)
        stats.add_bytes(down=sum(map(_size, requests.values())))
        for reply in self._engine.exchange_keys(requests) if requests else ():
            stats.add_bytes(up=_size(reply.keys))
            try:
                if reply.error:
                    raise SecureAggregationError(reply.error)
                take(reply.client, reply.keys)
            except MALFORMED as error:
                failures[reply.client] = _describe(error)
                self._drop_keys(reply.client)
        return failures

    def _take_encryption_key(self, client: int, message: Mapping[str, Any]) -> None:
        encryption_key = {
            "name": self._names[client],
            **{part: message["encryption_key"][part] for part in ("key", "signature")},
        }
        if len(bytes.fromhex(encryption_key["key"])) != 32:
            raise SecureAggregationError("its encryption key is not an X25519 key")
        if client not in self._encryption_keys or self._encryption_keys[client]["key"] != encryption_key["key"]:
            self._key_shares.clear()  # they hold shares for the old set of keys
        self._encryption_keys[client] = encryption_key
        self._unknown_keys.discard(client)

    def _encryption_key_table(self) -> dict[str, dict[str, str]]:
        return {str(k): encryption_key for k, encryption_key in self._encryption_keys.items()}

    def _take_key_shares(self, client: int, message: Mapping[str, Any]) -> None:
        share_keys = read_key_shares(message)
        if len(share_keys.mask) != 32 or share_keys.shares.keys() != self._encryption_keys.keys():
            raise SecureAggregationError("it did not send a share for every client")
        self._key_shares[client] = share_keys
        self._signed[client] = {name: message[name] for name in ("mask", "seed_hash", "number", "signature")}

    def _request(self, key_shares: Mapping[int, KeyShares], weights: Mapping[str, Sequence[float]]) -> dict[str, Any]:
        """The description of a sum, identical for every participant: otherwise the masks would not cancel."""
        largest = {name: max(by[k] for k in key_shares) for name, by in weights.items()}
        return {
            "sum": secrets.token_hex(16),
            "key_shares": {str(k): self._signed[k] for k in key_shares},
            "weights": {
                name: {str(k): float(by[k] / largest[name]) for k in key_shares} for name, by in weights.items()
            },
            "strict": self._strict,
            "encryption_keys": self._encryption_key_table(),
            "threshold": self._threshold,
        }

    # -- replies ---------------------------------------------------------------------------------------------------

    def _add_reply(self, reply: Reply, total: MaskedTotal, exchange: Exchange, check: Check, stats: RoundStats) -> None:
        name = self._names[reply.client]
        stats.add_reply(reply, name)
        stats.add_bytes(up=_size(reply.keys))
        try:
            if reply.error:
                raise PayloadError(reply.error)
            clipped = int(reply.keys["clipped"])
            self._take_key_shares(reply.client, reply.keys["key_shares"])
            total.add(reply, check)
        except MALFORMED as error:
            self._drop_keys(reply.client)
            self._leave_out(reply.client, exchange, _describe(error), stats)
            return
        if clipped:
            stats.losses[name]["clipped"] = float(clipped)

    def _unmask(
        self,
        total: MaskedTotal,
        key_shares: Mapping[int, KeyShares],
        request: Request,
        exchange: Exchange,
        stats: RoundStats,
    ) -> Words:
        """The sum without masks, with shares from the remaining participants where they are needed."""
        unmasking: dict[int, UnmaskingShares] = {}
        dropped = key_shares.keys() - total.sent
        if dropped or self._strict:
            requested = dropped | (total.sent if self._strict else set())
            requests = {
                j: {
                    "kind": "unmasking_shares",
                    "sum": request["sum"],
                    "sent": sorted(total.sent),
                    "shares": write_keys({k: key_shares[k].shares[j] for k in requested}),
                }
                for j in sorted(total.sent)
            }

            def take(j: int, message: Mapping[str, Any]) -> None:
                decrypted = UnmaskingShares(
                    read_keys(message["unmasking_shares"]["seeds"]), read_keys(message["unmasking_shares"]["keys"])
                )
                if decrypted.keys.keys() != dropped or decrypted.seeds.keys() != requested - dropped:
                    raise SecureAggregationError("it sent other shares than requested")
                unmasking[j] = decrypted

            for j, why in self._exchange_keys(requests, take, stats).items():
                self._leave_out(j, exchange, f"sent a payload, but no shares for unmasking: {why}", stats)
            self._require_quorum(
                len(unmasking), self._threshold, "sent shares for unmasking", exchange, sorted(total.sent), stats
            )
        try:
            return unmask(
                total.words, total.sent, key_shares, unmasking, sum_context(request), threshold=self._threshold,
                strict=self._strict,
            )  # fmt: skip
        except SecureAggregationError as error:
            raise QuorumError(f"{exchange.function.__name__} could not be unmasked: {error}") from None

    # -- failures --------------------------------------------------------------------------------------------------

    def _drop_keys(self, client: int) -> None:
        """A client that failed may have lost its keys: request them again."""
        self._unknown_keys.add(client)
        self._key_shares.pop(client, None)

    def _leave_out(self, client: int, exchange: Exchange, why: str, stats: RoundStats) -> None:
        stats.leave_out(self._names[client], exchange.function.__name__, why)

    def _require_quorum(
        self, count: int, needed: float, did: str, exchange: Exchange, clients: Sequence[int], stats: RoundStats
    ) -> None:
        if count < needed:
            raise QuorumError(
                f"only {count} of {len(clients)} clients {did} {exchange.function.__name__}, and a secure sum needs "
                f"{int(np.ceil(needed))} ({stats.reasons(len(clients))})"
            )


class MaskedTotal:
    """The running sum of masked payloads: the server never stores two of them."""

    def __init__(self) -> None:
        self.sent: set[int] = set()
        self.layout: Layout = []
        self.words: Words = np.zeros(0, dtype=np.uint32)

    def add(self, reply: Reply, check: Check) -> None:
        """Raise `PayloadError` unless values and layout match the declaration and those of the other clients."""
        layout = reply.keys["layout"]
        masked = reply.payloads[0].get(MASKED) if len(reply.payloads) == 1 else None
        if masked is None or len(reply.payloads[0]) > 1 or masked.dtype != torch.int32 or masked.dim() != 1:
            raise PayloadError("expected one row of masked numbers and nothing else")
        if why := check(Reply(reply.client, empty_payloads(layout, masked.numel()))):
            raise PayloadError(why)
        if self.sent and layout != self.layout:
            raise PayloadError("its layout differs from that of the other clients")
        words = masked.cpu().numpy().view(np.uint32)
        self.words = self.words + words if self.sent else words.copy()
        self.layout = layout
        self.sent.add(reply.client)


def _size(message: Mapping[str, Any]) -> int:
    return len(json.dumps(message)) if message else 0


def _describe(error: BaseException) -> str:
    plain = isinstance(error, ValueError) and str(error)
    return str(error) if plain else f"its message about keys is malformed: {error!r}"
