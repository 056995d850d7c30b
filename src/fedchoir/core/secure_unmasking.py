"""How the server removes the masks of a sum: participants agree on who sent, then reveal shares, which are checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedchoir.core.exchange import RoundStats
from fedchoir.core.secure_keys import KeyCollection
from fedchoir.privacy.secure_aggregation.fixed_point import Words
from fedchoir.privacy.secure_aggregation.messages import Request, read_unmasking_shares, write_keys
from fedchoir.privacy.secure_aggregation.protocol import (
    InvalidShares,
    KeyShares,
    UnmaskingShares,
    requested_hash,
    unmask,
    wrong_shares,
)
from fedchoir.privacy.secure_aggregation.terms import SecureAggregationError
from fedchoir.utils.errors import QuorumError


@dataclass(frozen=True)
class MaskedSum:
    """A sum whose masked payloads have arrived."""

    number: str
    exchange: str  # the name of the exchange, for messages
    words: Words
    sent: frozenset[int]
    signatures: Mapping[int, str]  # by client: that all participants sent
    key_shares: Mapping[int, KeyShares]  # of all participants
    context: bytes
    threshold: int
    strict: bool

    @property
    def dropped(self) -> frozenset[int]:
        return frozenset(self.key_shares) - self.sent


def remove_masks(total: MaskedSum, keys: KeyCollection, names: Mapping[int, str], stats: RoundStats) -> Words:
    """The sum without masks. Raises `QuorumError`, with names, if too few clients help."""
    unmasking: dict[int, UnmaskingShares] = {}
    if total.dropped or total.strict:
        signatures = _agree(total, keys, names, stats) if total.dropped else total.signatures
        unmasking = _collect_shares(total, signatures, keys, names, stats)
    try:
        return unmask(
            total.words, total.sent, total.key_shares, unmasking, total.context, threshold=total.threshold,
            strict=total.strict,
        )  # fmt: skip
    except InvalidShares as error:
        raise QuorumError(
            f"{total.exchange} could not be unmasked because of {names[error.participant]}: {error.why}; no aggregate "
            "was computed"
        ) from None


def _agree(total: MaskedSum, keys: KeyCollection, names: Mapping[int, str], stats: RoundStats) -> dict[int, str]:
    """Every remaining participant's signature of the list of senders."""
    request: Request = {"kind": "senders", "sum": total.number, "sent": sorted(total.sent)}
    signatures: dict[int, str] = {}

    def take(j: int, message: Mapping[str, Any]) -> None:
        signatures[j] = str(message["senders"]["signature"])

    failures = keys.ask(dict.fromkeys(sorted(total.sent), request), take, stats)
    _note(total, names, stats, {j: f"sent a payload, but did not sign who sent: {why}" for j, why in failures.items()})
    _require(total, len(signatures), "signed who sent a payload for", stats)
    return signatures


def _collect_shares(
    total: MaskedSum, signatures: Mapping[int, str], keys: KeyCollection, names: Mapping[int, str], stats: RoundStats
) -> dict[int, UnmaskingShares]:
    """Shares by the participant that revealed them. A participant with a wrong share is named and not used."""
    requested = total.dropped | (total.sent if total.strict else frozenset())
    signed = {str(k): signature for k, signature in signatures.items()}
    requests = {
        j: {
            "kind": "unmasking_shares",
            "sum": total.number,
            "sent": sorted(total.sent),
            "signatures": signed,
            "shares": write_keys({k: total.key_shares[k].shares[j] for k in requested}),
            "hashes": write_keys({k: requested_hash(total.key_shares[k], k, j, total.sent) for k in requested}),
        }
        for j in sorted(signatures)
    }
    unmasking: dict[int, UnmaskingShares] = {}

    def take(j: int, message: Mapping[str, Any]) -> None:
        shares = read_unmasking_shares(message["unmasking_shares"])
        if (
            shares.keys.keys() | shares.seeds.keys() | shares.invalid != requested
            or not total.dropped.issuperset(shares.keys)
            or not total.sent.issuperset(shares.seeds)
        ):
            raise SecureAggregationError("it sent other shares than requested")
        if wrong := wrong_shares(shares, j, total.key_shares):
            of = ", ".join(names[k] for k in wrong)
            raise SecureAggregationError(f"its shares of the keys of {of} are not those that it was given")
        unmasking[j] = shares

    failures = keys.ask(requests, take, stats)
    _note(total, names, stats, {j: f"sent a payload, but no shares for unmasking: {w}" for j, w in failures.items()})
    for j, shares in unmasking.items():
        why = f"{names[j]} reports that the key share from it does not match the hash that it published"
        _note(total, names, stats, dict.fromkeys(sorted(shares.invalid), why))
    _require(total, len(unmasking), "sent shares for unmasking", stats)
    return unmasking


def _note(total: MaskedSum, names: Mapping[int, str], stats: RoundStats, reasons: Mapping[int, str]) -> None:
    for k, why in reasons.items():
        stats.leave_out(names[k], total.exchange, why)


def _require(total: MaskedSum, count: int, did: str, stats: RoundStats) -> None:
    if count < total.threshold:
        raise QuorumError(
            f"only {count} of {len(total.sent)} clients {did} {total.exchange}, and a secure sum needs "
            f"{total.threshold} ({stats.reasons(len(total.key_shares))})"
        )
