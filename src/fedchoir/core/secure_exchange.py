"""The server's side of secure sums: who has offered keys, what was sent, and who must help to lift the masks.

It sees public keys, sealed shares, and numbers under masks, which it adds up as they come. With everyone there, a sum
costs no message of its own: keys for the next one come with the answers to this one. Who has offered none (at the
start, or after it was away) is asked for them first. A strict sum, and one from which someone dropped out, takes one
more message to each who is left.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from fedchoir.core.actions import Action, Exchange
from fedchoir.core.exchange import Reply, RoundStats
from fedchoir.payload import PayloadError
from fedchoir.privacy.eligibility import FEWEST, sum_weights
from fedchoir.privacy.secure_aggregation.client import MASKED, Request, read_keys, read_offer, subject, write_keys
from fedchoir.privacy.secure_aggregation.crypto import Offer, Reveal, SecureAggregationError, Words, majority, unmask
from fedchoir.privacy.secure_aggregation.quantization import Layout, blanks, unpack_mean, weight_under
from fedchoir.utils.errors import QuorumError, UsageError

MALFORMED = (KeyError, TypeError, ValueError, AttributeError)
"""What reading an answer raises that is not what it should be."""
Check = Callable[[Reply], str]
"""Why a reply is not what its method declared, or the empty string."""


@runtime_checkable
class SecureEngine(Protocol):
    """An engine whose clients can hide what they say."""

    def execute(
        self,
        clients: Sequence[int],
        actions: Sequence[Action],
        round_index: int,
        masking: Mapping[int, Request] | None = None,
    ) -> Iterator[Reply]: ...

    def exchange_keys(self, requests: Mapping[int, Request]) -> Iterator[Reply]:
        """Words about keys with each of these clients, beside what the method does: `Reply.keys`."""


class SecureExchange:
    """Plays the exchanges of a run as secure sums. What it knows need not outlive it: new keys are soon agreed."""

    def __init__(self, engine: SecureEngine, names: Sequence[str], method: str, *, strict: bool, quorum: float) -> None:
        self._engine, self._names, self._method = engine, list(names), method
        self._strict, self._quorum = strict, quorum
        self._threshold = majority(len(names))
        self._seals: dict[int, dict[str, str]] = {}  # name, key and the site's own signature
        self._doubtful = set(range(len(names)))  # whose sealing key is not known, or may have been lost
        self._offers: dict[int, Offer] = {}  # for the next sum
        self._signed: dict[int, dict[str, Any]] = {}  # what members are told of them

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
        """The mean of what the clients say, without seeing what any one of them says."""
        weights = self._weights(exchange)
        lacking = self._agree(clients, stats)
        members = [k for k in clients if k in self._offers and all(w[k] > 0 for w in weights.values())]
        for k in [k for k in clients if k not in members]:
            self._leave_out(k, exchange, lacking.get(k, "it has no weight in the mean"), stats)
        self._enough(len(members), max(FEWEST, self._threshold), "offered keys for", exchange, clients, stats)
        offers = {k: self._offers.pop(k) for k in members}
        request = self._request(offers, weights)
        masking = dict.fromkeys(members, request)
        stats.add_bytes(down=sum(map(_size, masking.values())))
        total = MaskedTotal()
        for reply in received(self._engine.execute(clients, actions, round_index, masking)):
            if reply.client in offers:
                self._take(reply, total, exchange, check, stats)
        needed = max(self._threshold, self._quorum * len(clients))
        self._enough(len(total.sent), needed, "gave a usable answer to", exchange, clients, stats)
        words = self._lift(total, offers, request, exchange, stats)
        shares = {name: sum(by[str(k)] for k in total.sent) for name, by in request["weights"].items()}
        combined = unpack_mean(words, total.layout, lambda name: weight_under(shares, name), len(members))
        return combined if exchange.batches else combined[0]

    def _weights(self, exchange: Exchange) -> dict[str, Sequence[float]]:
        weights = sum_weights(exchange.aggregator(), len(self._names))
        if weights is None:
            raise UsageError(
                f"secure = true is not possible with {self._method}: its exchange {exchange.function.__name__} needs single "
                "answers, and a secure sum gives only their mean"
            )
        return weights

    # -- keys ------------------------------------------------------------------------------------------------------

    def _agree(self, clients: Sequence[int], stats: RoundStats) -> dict[int, str]:
        """See to it that everyone has offered keys for the next sum; returns why some have not."""
        unknown: dict[int, Request] = {k: {"say": "seal"} for k in clients if k in self._doubtful}
        lacking = self._exchange_keys(unknown, self._take_seal, stats)
        if len(self._seals) < max(FEWEST, self._threshold):
            return lacking
        wanted = {"say": "offer", "seals": self._told_seals(), "threshold": self._threshold}
        without: dict[int, Request] = {k: wanted for k in clients if k not in self._doubtful | self._offers.keys()}
        return lacking | self._exchange_keys(without, lambda k, told: self._take_offer(k, told["offer"]), stats)

    def _exchange_keys(
        self, requests: Mapping[int, Request], take: Callable[[int, Mapping[str, Any]], None], stats: RoundStats
    ) -> dict[int, str]:
        """One message about keys to each of these; returns who did not answer well, and why."""
        lacking: dict[int, str] = {}
        stats.messages += len(requests)
        stats.add_bytes(down=sum(map(_size, requests.values())))
        for reply in self._engine.exchange_keys(requests) if requests else ():
            stats.add_bytes(up=_size(reply.keys))
            try:
                if reply.error:
                    raise SecureAggregationError(reply.error)
                take(reply.client, reply.keys)
            except MALFORMED as error:
                lacking[reply.client] = _words(error)
                self._forget(reply.client)
        return lacking

    def _take_seal(self, client: int, told: Mapping[str, Any]) -> None:
        seal = {"name": self._names[client], **{part: told["seal"][part] for part in ("key", "signature")}}
        if len(bytes.fromhex(seal["key"])) != 32:
            raise SecureAggregationError("its sealing key is no X25519 key")
        if client not in self._seals or self._seals[client]["key"] != seal["key"]:
            self._offers.clear()  # offers hold shares for those who were known when they were made
        self._seals[client] = seal
        self._doubtful.discard(client)

    def _told_seals(self) -> dict[str, dict[str, str]]:
        return {str(k): seal for k, seal in self._seals.items()}

    def _take_offer(self, client: int, told: Mapping[str, Any]) -> None:
        offer = read_offer(told)
        if len(offer.mask) != 32 or offer.shares.keys() != self._seals.keys():
            raise SecureAggregationError("its offer has no share for everyone")
        self._offers[client] = offer
        self._signed[client] = {name: told[name] for name in ("mask", "proof", "number", "signature")}

    def _request(self, offers: Mapping[int, Offer], weights: Mapping[str, Sequence[float]]) -> dict[str, Any]:
        """What each member is told about a sum: the same to all, or their masks would not cancel."""
        largest = {name: max(by[k] for k in offers) for name, by in weights.items()}
        return {
            "sum": secrets.token_hex(16),
            "offers": {str(k): self._signed[k] for k in offers},
            "weights": {name: {str(k): float(by[k] / largest[name]) for k in offers} for name, by in weights.items()},
            "strict": self._strict,
            "seals": self._told_seals(),
            "threshold": self._threshold,
        }

    # -- answers ---------------------------------------------------------------------------------------------------

    def _take(self, reply: Reply, total: MaskedTotal, exchange: Exchange, check: Check, stats: RoundStats) -> None:
        name = self._names[reply.client]
        stats.add_reply(reply, name)
        stats.add_bytes(up=_size(reply.keys))
        try:
            if reply.error:
                raise PayloadError(reply.error)
            clipped = int(reply.keys["clipped"])
            self._take_offer(reply.client, reply.keys["offer"])
            total.add(reply, check)
        except MALFORMED as error:
            self._forget(reply.client)
            self._leave_out(reply.client, exchange, _words(error), stats)
            return
        if clipped:
            stats.losses[name]["clipped"] = float(clipped)

    def _lift(
        self, total: MaskedTotal, offers: Mapping[int, Offer], request: Request, exchange: Exchange, stats: RoundStats
    ) -> Words:
        """The sum without masks: as it is, or with the help of those who are left."""
        reveals: dict[int, Reveal] = {}
        dropped = offers.keys() - total.sent
        if dropped or self._strict:
            wanted = dropped | (total.sent if self._strict else set())
            requests = {
                j: {
                    "say": "reveal",
                    "sum": request["sum"],
                    "sent": sorted(total.sent),
                    "shares": write_keys({k: offers[k].shares[j] for k in wanted}),
                }
                for j in sorted(total.sent)
            }

            def take(j: int, told: Mapping[str, Any]) -> None:
                opened = Reveal(read_keys(told["reveal"]["seeds"]), read_keys(told["reveal"]["keys"]))
                if opened.keys.keys() != dropped or opened.seeds.keys() != wanted - dropped:
                    raise SecureAggregationError("it opened other shares than it was asked for")
                reveals[j] = opened

            for j, why in self._exchange_keys(requests, take, stats).items():
                self._leave_out(j, exchange, f"sent, but did not help to lift the masks: {why}", stats)
            self._enough(
                len(reveals), self._threshold, "helped to lift the masks of", exchange, sorted(total.sent), stats
            )
        try:
            return unmask(
                total.words, total.sent, offers, reveals, subject(request), threshold=self._threshold,
                strict=self._strict,
            )  # fmt: skip
        except SecureAggregationError as error:
            raise QuorumError(f"the masks of {exchange.function.__name__} could not be lifted: {error}") from None

    # -- who is left out -------------------------------------------------------------------------------------------

    def _forget(self, client: int) -> None:
        """Who failed may have lost its keys: it is asked for them anew."""
        self._doubtful.add(client)
        self._offers.pop(client, None)

    def _leave_out(self, client: int, exchange: Exchange, why: str, stats: RoundStats) -> None:
        stats.left_out.append({"client": self._names[client], "exchange": exchange.function.__name__, "why": why})

    def _enough(
        self, there: int, needed: float, did: str, exchange: Exchange, clients: Sequence[int], stats: RoundStats
    ) -> None:
        if there >= needed:
            return
        reasons = "; ".join(f"{out['client']}: {out['why']}" for out in stats.left_out[-len(clients) :])
        raise QuorumError(
            f"only {there} of {len(clients)} clients {did} {exchange.function.__name__}, and a secure sum needs "
            f"{int(np.ceil(needed))} ({reasons or 'no answer in time'})"
        )


class MaskedTotal:
    """What members sent, added up as it comes: the server never holds two answers, even under masks."""

    def __init__(self) -> None:
        self.sent: set[int] = set()
        self.layout: Layout = []
        self.words: Words = np.zeros(0, dtype=np.uint32)

    def add(self, reply: Reply, check: Check) -> None:
        """Raise `PayloadError` unless numbers and layout are what was declared, and like those of the others."""
        layout = reply.keys["layout"]
        masked = reply.payloads[0].get(MASKED) if len(reply.payloads) == 1 else None
        if masked is None or len(reply.payloads[0]) > 1 or masked.dtype != torch.int32 or masked.dim() != 1:
            raise PayloadError("it should have sent one row of masked numbers and nothing else")
        if why := check(Reply(reply.client, blanks(layout, masked.numel()))):
            raise PayloadError(why)
        if self.sent and layout != self.layout:
            raise PayloadError("its answer has another layout than those of the others")
        words = masked.cpu().numpy().view(np.uint32)
        self.words = self.words + words if self.sent else words.copy()
        self.layout = layout
        self.sent.add(reply.client)


def _size(told: Mapping[str, Any]) -> int:
    return len(json.dumps(told)) if told else 0


def _words(error: BaseException) -> str:
    plain = isinstance(error, ValueError) and str(error)
    return str(error) if plain else f"its answer about keys is malformed: {error!r}"
