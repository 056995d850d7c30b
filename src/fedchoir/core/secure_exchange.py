"""The server's side of secure aggregation: it collects keys, adds masked payloads, and removes the masks of the sum.

The server sees public keys, encrypted shares and masked numbers. While every client replies, a sum costs no message of
its own: key shares for the next sum come with the masked payloads of this one. A strict sum takes one more message to
each client, and one with dropouts two to each remaining client.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch

from fedchoir.core.actions import Action, Exchange
from fedchoir.core.eligibility import mean_weights
from fedchoir.core.exchange import Reply, RoundStats
from fedchoir.core.interfaces import SecureEngine
from fedchoir.core.secure_keys import MALFORMED, KeyCollection, describe, size
from fedchoir.core.secure_unmasking import MaskedSum, remove_masks
from fedchoir.payload import PayloadError
from fedchoir.privacy.secure_aggregation.fixed_point import Words
from fedchoir.privacy.secure_aggregation.messages import MASKED, sum_context
from fedchoir.privacy.secure_aggregation.quantization import Layout, empty_payloads, unpack_mean, weight_of
from fedchoir.privacy.secure_aggregation.terms import (
    MIN_CLIENTS,
    SecureAggregationError,
    SumLimits,
    SumTerms,
    Weights,
    threshold_of,
)
from fedchoir.utils.errors import QuorumError, UsageError

Check = Callable[[Reply], str]
"""Why a reply does not match its declaration; empty where it does."""


class SecureExchange:
    """Runs exchanges as secure sums.

    ``senders`` stores who was in a sum with dropouts: a server that is interrupted and repeats the exchange must ask
    for the same sum. Nothing else needs to outlive the process: clients agree on new keys at once.
    """

    def __init__(
        self,
        engine: SecureEngine,
        names: Sequence[str],
        method: str,
        *,
        strict: bool,
        quorum: float,
        senders: MutableMapping[str, str] | None = None,
        limits: SumLimits | None = None,
    ) -> None:
        self._engine, self._names, self._method = engine, tuple(names), method
        self._strict, self._quorum = strict, quorum
        self._threshold = threshold_of(len(names))
        self._keys = KeyCollection(engine, self._names, self._threshold)
        self._senders = {} if senders is None else senders
        self._limits = limits or SumLimits()
        self._last = (-1, -1)  # the round of the last exchange, and its number in this round

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
        self._last = (round_index, self._last[1] + 1 if self._last[0] == round_index else 0)
        failures = self._keys.collect(clients, stats)
        terms = self._terms(exchange)
        digests = self._engine.received(clients, actions, round_index) if self._strict else dict.fromkeys(clients, "")
        common = Counter(digests.values()).most_common(1)[0][0]
        failures |= {k: "it missed something that the others received" for k in clients if digests[k] != common}
        participants = self._participants(terms, clients, failures, exchange, stats)
        weights = terms.weights_of(participants)
        request = self._request(participants, common)
        key_shares = self._keys.take(participants)
        stats.add_bytes(down=size(request) * len(participants))
        total = MaskedTotal()
        masking = dict.fromkeys(participants, request)
        for reply in received(self._engine.execute(clients, actions, round_index, masking)):
            if reply.client in key_shares:
                self._add_reply(reply, total, exchange, check, stats)
        needed = max(self._threshold, self._quorum * len(clients))
        self._require_quorum(len(total.sent), needed, "sent a usable payload for", exchange, clients, stats)
        if len(total.sent) < len(clients):
            self._senders[_label(terms)] = ",".join(map(str, sorted(total.sent)))
        masked = MaskedSum(
            request["sum"], exchange.function.__name__, total.words, frozenset(total.sent), total.signatures,
            key_shares, sum_context(request, weights), self._threshold, self._strict,
        )  # fmt: skip
        words = remove_masks(masked, self._keys, dict(enumerate(self._names)), stats)
        return self._mean(words, total, weights, exchange)

    def _terms(self, exchange: Exchange) -> SumTerms:
        weights = mean_weights(exchange.aggregator())
        if weights is None:
            raise UsageError(
                f"secure = true is not possible with {self._method}: its exchange {exchange.function.__name__} needs "
                "individual payloads, and secure aggregation gives only their mean"
            )
        return SumTerms(self._last, self._names, weights)

    def _participants(
        self,
        terms: SumTerms,
        clients: Sequence[int],
        failures: Mapping[int, str],
        exchange: Exchange,
        stats: RoundStats,
    ) -> list[int]:
        """The clients that can be in the sum; the others are left out, with a reason."""
        reasons = {k: failures.get(k, "it sent no keys") for k in clients if k in failures or k not in self._keys}
        weightless = [k for k in clients if any(by and by[k] <= 0 for by in terms.weights.values())]
        reasons |= dict.fromkeys(weightless, "it has no weight in the mean")
        if before := self._senders.get(_label(terms)):
            absent = set(clients) - {int(k) for k in before.split(",")}
            reasons |= dict.fromkeys(absent, "it was not in this sum before the server was interrupted")
        weights = terms.weights_of(k for k in clients if k not in reasons)
        for k, share in self._limits.excessive(weights).items():
            reasons[k] = f"it would be {share:.1%} of the mean, and {self._limits.max_share:.0%} is allowed"
        for k, why in sorted(reasons.items()):
            self._leave_out(k, exchange, why, stats)
        participants = [k for k in clients if k not in reasons]
        needed = max(MIN_CLIENTS, self._threshold)
        self._require_quorum(len(participants), needed, "can take part in", exchange, clients, stats)
        return participants

    def _request(self, participants: Sequence[int], received: str = "") -> dict[str, Any]:
        """The description of a sum, identical for every participant: otherwise the masks would not cancel.

        ``received`` is a hash of what all of them have received in the run.
        """
        return {
            "sum": secrets.token_hex(16),
            "exchange": list(self._last),
            "key_shares": self._keys.public_keys(participants),
            "encryption_keys": self._keys.encryption_keys(),
            "threshold": self._threshold,
            "strict": self._strict,
            "received": received,
        }

    def _add_reply(self, reply: Reply, total: MaskedTotal, exchange: Exchange, check: Check, stats: RoundStats) -> None:
        name = self._names[reply.client]
        stats.add_reply(reply, name)
        stats.add_bytes(up=size(reply.keys))
        try:
            if reply.error:
                raise PayloadError(reply.error)
            clipped = int(reply.keys["clipped"])
            self._keys.add(reply.client, reply.keys["key_shares"])
            total.add(reply, check)
        except MALFORMED as error:
            self._keys.forget(reply.client)
            self._leave_out(reply.client, exchange, describe(error), stats)
            return
        if clipped:
            stats.losses[name]["clipped"] = float(clipped)

    def _mean(self, words: Words, total: MaskedTotal, weights: Weights, exchange: Exchange) -> Any:
        shares = {name: sum(by[k] for k in total.sent) for name, by in weights.items()}
        participants = len(next(iter(weights.values())))
        try:
            result = unpack_mean(words, total.layout, lambda name: weight_of(shares, name), participants)
        except SecureAggregationError as error:
            raise QuorumError(f"the aggregate of {exchange.function.__name__} is not used: {error}") from None
        return result if exchange.batches else result[0]

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
        self.signatures: dict[int, str] = {}
        self.layout: Layout = []
        self.words: Words = np.zeros(0, dtype=np.uint32)

    def add(self, reply: Reply, check: Check) -> None:
        """Raise `PayloadError` unless values and layout match the declaration and those of the other clients."""
        layout, signature = reply.keys["layout"], bytes.fromhex(reply.keys["signature"]).hex()
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
        self.signatures[reply.client] = signature


def _label(terms: SumTerms) -> str:
    return "-".join(map(str, terms.exchange))
