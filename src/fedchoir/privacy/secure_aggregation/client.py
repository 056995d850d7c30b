"""The client's side of secure aggregation: it exchanges keys with the server and masks payloads before they leave.

Secrets are kept in a store (a folder at a site, a dictionary in a simulation): the encryption key for the whole run,
the key shares for the next sum, and those of the last sum until it is unmasked. Each is used once. The client refuses
requests that would reveal more than a sum, and asks for the sum of other clients when an exchange is repeated.
"""

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from fedchoir.payload import Payload
from fedchoir.privacy.secure_aggregation.answers import Answers
from fedchoir.privacy.secure_aggregation.messages import (
    MASKED,
    Request,
    list_of,
    read_encryption_keys,
    read_keys,
    read_masks,
    signed_content,
    sum_context,
    write_key_shares,
    write_unmasking_shares,
)
from fedchoir.privacy.secure_aggregation.peer_keys import Identity, UnverifiedPeers
from fedchoir.privacy.secure_aggregation.protocol import Participant
from fedchoir.privacy.secure_aggregation.quantization import pack, weight_of
from fedchoir.privacy.secure_aggregation.terms import (
    SecureAggregationError,
    SumLimits,
    SumTerms,
    Weights,
    threshold_of,
)


class SecureAggregationClient:
    """One client in the protocol. ``index`` is its number in the federation; signatures are valid for ``run``."""

    def __init__(
        self,
        index: int,
        store: MutableMapping[str, str],
        identity: Identity | None = None,
        run: str = "",
        limits: SumLimits | None = None,
    ) -> None:
        self._index, self._store, self._answers = index, store, Answers(store)
        self._identity, self._run = identity or UnverifiedPeers(), run
        self._limits = limits or SumLimits()

    def exchange_keys(self, request: Request) -> dict[str, Any]:
        """Handle a message about keys."""
        with refusing_malformed_requests():
            return self._exchange_keys(request)

    def _exchange_keys(self, request: Request) -> dict[str, Any]:
        kind = request.get("kind")
        if kind == "encryption_key":
            key = self._participant().encryption_key
            return {"encryption_key": {"key": key.hex(), "signature": self._sign("encryption key", key)}}
        if kind == "key_shares":
            return {"key_shares": self._share_keys(request)}
        if kind == "senders":
            return {"senders": {"signature": self._sign_senders(request)}}
        if kind == "unmasking_shares":
            return {"unmasking_shares": self._unmasking_shares(request)}
        raise SecureAggregationError(
            f"unknown request {kind!r}; expected encryption_key, key_shares, senders or unmasking_shares"
        )

    # -- keys ------------------------------------------------------------------------------------------------------

    def _share_keys(self, request: Request) -> dict[str, Any]:
        self._check_encryption_keys(request["encryption_keys"])
        me, threshold = self._participant(), int(request["threshold"])
        shares = me.share_keys(read_encryption_keys(request["encryption_keys"]), threshold)
        number = int(self._store.get("count", "0")) + 1
        self._store["count"] = str(number)
        self._store["key_shares"] = json.dumps(
            {"mask": me.mask_key.hex(), "seed": me.seed.hex(), "threshold": threshold}
        )
        signature = self._sign("keys of a sum", shares.mask, shares.commitment, number)
        return {**write_key_shares(shares), "number": number, "signature": signature}

    def _check_encryption_keys(self, encryption_keys: Mapping[str, Mapping[str, str]]) -> None:
        """Verify that each key belongs to its site, and that no site occurs twice. The same keys are verified once."""
        digest = hashlib.sha256(json.dumps(encryption_keys, sort_keys=True).encode()).hexdigest()
        if self._store.get("verified_keys") == digest:
            return
        if len({encryption_key["name"] for encryption_key in encryption_keys.values()}) < len(encryption_keys):
            raise SecureAggregationError("refused: two keys claim to belong to one site")
        for k, key in read_encryption_keys(encryption_keys).items():
            message = encryption_keys[str(k)]
            self._check(message["name"], message["signature"], "encryption key", k, key)
        self._store["verified_keys"] = digest

    def _check_keys_of_sum(self, request: Request) -> None:
        """The same for the keys of one sum; each must be newer than the last one of that site."""
        seen = json.loads(self._store.get("seen", "{}"))
        for k, mask in read_masks(request["key_shares"]).items():
            message, name = request["key_shares"][str(k)], request["encryption_keys"][str(k)]["name"]
            number = int(message["number"])
            commitment = bytes.fromhex(message["commitment"])
            self._check(name, message["signature"], "keys of a sum", k, mask, commitment, number)
            if number <= seen.get(str(k), 0):
                raise SecureAggregationError(f"refused: the keys of {name} were used before")
            seen[str(k)] = number
        self._store["seen"] = json.dumps(seen)

    # -- payloads --------------------------------------------------------------------------------------------------

    def mask_payloads(
        self, payloads: Sequence[Payload], request: Request, terms: SumTerms
    ) -> tuple[list[Payload], dict[str, Any]]:
        """The masked payloads, with their layout, the key shares for the next sum and, in a strict sum, this client's
        signature that everyone sent, which the others need if nobody drops out."""
        with refusing_malformed_requests():
            return self._mask_payloads(payloads, request, terms)

    def _mask_payloads(
        self, payloads: Sequence[Payload], request: Request, terms: SumTerms
    ) -> tuple[list[Payload], dict[str, Any]]:
        keys, strict = self._pop("key_shares"), bool(request["strict"])
        self._check_encryption_keys(request["encryption_keys"])
        weights = self._check_terms(request, terms, keys)
        self._check_keys_of_sum(request)
        masks, context = read_masks(request["key_shares"]), sum_context(request, weights)
        self._answers.check(terms.exchange, masks, context)
        mine = {name: by[self._index] for name, by in weights.items()}
        packed = pack(payloads, lambda name: weight_of(mine, name), len(masks))
        masked = self._participant(keys).mask(packed.words, masks, context, strict=strict)
        if not strict:  # if everyone sends, the server needs nothing more
            self._answers.record(terms.exchange, masks, context)
        kept = {name: request[name] for name in ("sum", "key_shares", "encryption_keys")}
        known = {"context": context.hex(), "weights": weights, "exchange": terms.exchange, "strict": strict}
        self._store["pending"] = json.dumps({**keys, **kept, **known})
        message = {
            "layout": packed.layout,
            "clipped": packed.clipped,
            "key_shares": self._share_keys(request),
            "signature": self._sign("senders", context, list_of(masks)) if strict else "",
        }
        return [Payload({MASKED: torch.from_numpy(masked.view("int32"))})], message

    def _check_terms(self, request: Request, terms: SumTerms, keys: Mapping[str, Any]) -> Weights:
        """The weights of the participants, from this client's own copy of the federation."""
        if list(request["exchange"]) != list(terms.exchange):
            raise SecureAggregationError(
                f"refused: the sum is for exchange {request['exchange']}, and this is {list(terms.exchange)}"
            )
        if request["strict"] and request.get("received", "") != terms.received:
            raise SecureAggregationError(
                "refused: the other sites of this sum received something else from the server than this site"
            )
        self._answers.fix_sites(terms.sites)
        needed = threshold_of(len(terms.sites))
        if int(request["threshold"]) != needed or int(keys["threshold"]) != needed:
            raise SecureAggregationError(f"refused: {len(terms.sites)} sites have a threshold of {needed}")
        weights = terms.weights_of(int(k) for k in request["key_shares"])
        names = {int(k): entry["name"] for k, entry in request["encryption_keys"].items()}
        if any(not 0 <= k < len(terms.sites) or terms.sites[k] != name for k, name in names.items()):
            raise SecureAggregationError("refused: the keys do not belong to the sites of this federation")
        self._limits.check(weights, {int(k): names[int(k)] for k in request["key_shares"]})
        return weights

    # -- unmasking -------------------------------------------------------------------------------------------------

    def _sign_senders(self, request: Request) -> str:
        """Sign who sent, once for each sum. Nobody reveals a share before enough clients have signed the same list."""
        pending = self._pending(request)
        if "sent" in pending:
            raise SecureAggregationError("refused: a list of the senders of this sum was signed before")
        senders = self._check_senders(request, pending)
        self._store["pending"] = json.dumps({**pending, "sent": senders})
        return self._sign("senders", bytes.fromhex(pending["context"]), list_of(senders))

    def _unmasking_shares(self, request: Request) -> dict[str, Any]:
        """Shares that unmask the last sum, for a list of senders that enough clients signed. They are given out once.

        A list of all participants needs no message of its own: each signed it when it sent its payload. A client that
        has signed another list reveals shares for that one only.
        """
        pending = self._pending(request)
        senders = self._check_senders(request, pending)
        if pending.get("sent", sorted(int(k) for k in pending["key_shares"])) != senders:
            raise SecureAggregationError("refused: this client did not sign that list of senders")
        self._check_signatures(request["signatures"], senders, pending)
        shares = self._participant(pending).unmasking_shares(
            read_keys(request["shares"]),
            read_keys(request["hashes"]),
            read_encryption_keys(pending["encryption_keys"]),
            read_masks(pending["key_shares"]),
            sent=senders,
            threshold=int(pending["threshold"]),
            strict=bool(pending["strict"]),
        )
        return write_unmasking_shares(shares)

    def _pending(self, request: Request) -> dict[str, Any]:
        pending = self._pop("pending")
        if pending["sum"] != request.get("sum"):
            raise SecureAggregationError("refused: this is not the last sum, or it was unmasked already")
        return pending

    def _check_senders(self, request: Request, pending: Mapping[str, Any]) -> list[int]:
        """Refuse a list of senders that would reveal more than a sum, or another sum of an exchange than before."""
        senders = sorted({int(k) for k in request["sent"]})
        participants = {int(k) for k in pending["key_shares"]}
        if self._index not in senders or not participants.issuperset(senders) or len(senders) < pending["threshold"]:
            raise SecureAggregationError("refused: this would reveal more than a sum")
        weights = {name: {k: by[str(k)] for k in senders} for name, by in pending["weights"].items()}
        self._limits.check(weights, {k: pending["encryption_keys"][str(k)]["name"] for k in senders})
        self._answers.record(tuple(pending["exchange"]), senders, bytes.fromhex(pending["context"]))
        return senders

    def _check_signatures(self, signatures: Mapping[str, str], senders: list[int], pending: Mapping[str, Any]) -> None:
        """Refuse to reveal shares unless enough clients signed the same list of senders for the same sum."""
        valid, needed, why = 0, int(pending["threshold"]), ""
        content = (bytes.fromhex(pending["context"]), list_of(senders))
        for k in (k for k in senders if str(k) in signatures):
            name = pending["encryption_keys"][str(k)]["name"]
            try:
                self._check(name, signatures[str(k)], "senders", k, *content)
                valid += 1
            except SecureAggregationError as error:
                why = f" ({error})"
            if valid == needed:
                return
        raise SecureAggregationError(
            f"refused: {valid} clients have validly signed this list of senders, and {needed} are needed{why}"
        )

    # -- secrets and signatures ------------------------------------------------------------------------------------

    def _sign(self, kind: str, *content: bytes | int | str) -> str:
        return self._identity.sign(signed_content(kind, self._run, self._index, *content)).hex()

    def _check(self, name: str, signature: str, kind: str, index: int, *content: bytes | int | str) -> None:
        """Raise `SecureAggregationError` unless the site of this name signed the content."""
        self._identity.check(name, signed_content(kind, self._run, index, *content), bytes.fromhex(signature))

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


@contextmanager
def refusing_malformed_requests() -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise SecureAggregationError(f"refused: the request is malformed: {error!r}") from None
