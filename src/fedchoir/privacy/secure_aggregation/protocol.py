"""Secure sums: pairwise masks that cancel, and secret shares that remove the masks of clients that drop out.

After Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017. Every participant
has an encryption key whose public half all know. One sum takes:

1. `Participant.share_keys`: a fresh mask key and a fresh seed. The public mask key is published; shares of both secrets
   (Shamir) are encrypted for every participant, and a hash of each share is published with them.
2. `Participant.mask`: the participant sends its integers plus all masks, modulo 2³².
3. `Participant.unmasking_shares`, where needed: shares of the mask keys of participants that dropped out; in a *strict*
   sum also shares of the seeds of those that sent. `unmask` removes the masks from the *sum*.

A sum that is not strict has no seed masks and needs no third step while everyone sends. Its price: a server that claims
a dropout that did not happen obtains the sum without that participant, and so the participant's payload. A strict sum
prevents this: nobody reveals both secrets of one participant, and `client.py` lets participants agree, by signatures,
on who sent before anyone reveals a share.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from fedchoir.privacy.secure_aggregation import shamir
from fedchoir.privacy.secure_aggregation.crypto import commitment, decrypt, encrypt, key_stream, shared_key
from fedchoir.privacy.secure_aggregation.fixed_point import FixedPoint, Floats, Words
from fedchoir.privacy.secure_aggregation.terms import MIN_CLIENTS, SecureAggregationError, threshold_of


@dataclass(frozen=True)
class KeyShares:
    """A participant's contribution to one sum: a public mask key, the hash of its seed, and by participant an encrypted
    pair of shares with their hashes (of the mask key, then of the seed)."""

    mask: bytes
    seed_hash: bytes
    shares: Mapping[int, bytes] = field(default_factory=dict)
    key_hashes: Mapping[int, bytes] = field(default_factory=dict)
    seed_hashes: Mapping[int, bytes] = field(default_factory=dict)

    @property
    def commitment(self) -> bytes:
        """One hash of all hashes. Its owner signs it, so it cannot change the shares afterwards."""
        hashes = [part[k] for part in (self.key_hashes, self.seed_hashes) for k in sorted(part)]
        return commitment(self.seed_hash, *hashes)


@dataclass(frozen=True)
class UnmaskingShares:
    """Decrypted shares by participant: seeds of those that sent, mask keys of those that dropped out. ``invalid``:
    the participants whose encrypted share does not match the hash that they published."""

    seeds: Mapping[int, bytes]
    keys: Mapping[int, bytes]
    invalid: frozenset[int] = frozenset()


class InvalidShares(SecureAggregationError):
    """The shares of one participant's secret do not give this secret."""

    def __init__(self, participant: int, why: str) -> None:
        super().__init__(f"participant {participant}: {why}")
        self.participant, self.why = participant, why


class Participant:
    """One participant in one sum. Mask key and seed are used once; the encryption key may serve many sums."""

    def __init__(self, index: int, encryption_key: bytes, mask: bytes | None = None, seed: bytes | None = None) -> None:
        self.index = index
        self._encryption_key = X25519PrivateKey.from_private_bytes(encryption_key)
        self._mask_key = X25519PrivateKey.from_private_bytes(mask) if mask else X25519PrivateKey.generate()
        self.seed = seed or secrets.token_bytes(32)

    @property
    def mask_key(self) -> bytes:
        """The private mask key, to restore a participant between two messages."""
        return self._mask_key.private_bytes_raw()

    @property
    def public_mask_key(self) -> bytes:
        return self._mask_key.public_key().public_bytes_raw()

    @property
    def encryption_key(self) -> bytes:
        """The public half of the encryption key."""
        return self._encryption_key.public_key().public_bytes_raw()

    def share_keys(self, encryption_keys: Mapping[int, bytes], threshold: int) -> KeyShares:
        """A public mask key, and encrypted shares of mask key and seed for every participant (itself included)."""
        count = len(encryption_keys)
        if encryption_keys.get(self.index) != self.encryption_key or count < max(MIN_CLIENTS, threshold):
            raise SecureAggregationError(f"{count} participants: a sum needs at least 3, and the threshold")
        if threshold < threshold_of(count):
            raise SecureAggregationError(f"threshold {threshold} of {count}: {threshold_of(count)} is needed")
        points = [k + 1 for k in encryption_keys]
        keys = shamir.split(self.mask_key, points, threshold)
        seeds = shamir.split(self.seed, points, threshold)
        encrypted = {
            k: encrypt(self._key_with(key), keys[k + 1] + seeds[k + 1], _about(self.index, k, self.public_mask_key))
            for k, key in encryption_keys.items()
        }
        return KeyShares(
            self.public_mask_key, commitment(self.seed), encrypted,
            key_hashes={k: commitment(keys[k + 1]) for k in encryption_keys},
            seed_hashes={k: commitment(seeds[k + 1]) for k in encryption_keys},
        )  # fmt: skip

    def mask(self, words: Words, masks: Mapping[int, bytes], context: bytes, *, strict: bool) -> Words:
        """The masked words. ``masks`` are the public mask keys of all participants. Masks cancel only if all
        participants use the same ``context``."""
        if len(masks) < MIN_CLIENTS or masks[self.index] != self.public_mask_key:
            raise SecureAggregationError(
                "refused: the sum would hide nothing, or these keys do not belong to this participant"
            )
        masked = words + key_stream(self.seed, words.size) if strict else words.copy()
        for k, mask in masks.items():
            if k != self.index:
                pair = key_stream(shared_key(self._mask_key, mask, b"mask" + context), words.size)
                masked = masked + pair if k > self.index else masked - pair
        return masked

    def unmasking_shares(
        self,
        encrypted: Mapping[int, bytes],
        hashes: Mapping[int, bytes],
        encryption_keys: Mapping[int, bytes],
        masks: Mapping[int, bytes],
        *,
        sent: Iterable[int],
        threshold: int,
        strict: bool,
    ) -> UnmaskingShares:
        """Shares for unmasking: never both secrets of one participant, never below the threshold. ``hashes`` are those
        of the shares that are requested."""
        senders = set(sent)
        dropped = set(masks) - senders
        if self.index not in senders or not senders <= set(masks) or len(senders) < threshold:
            raise SecureAggregationError("refused: this would reveal more than a sum")
        if not strict and not dropped:
            raise SecureAggregationError("refused: nobody dropped out, so nothing needs unmasking")
        revealed: dict[int, bytes] = {}
        for k in dropped | (senders if strict else set()):
            pair = self._decrypted(k, encryption_keys[k], masks[k], encrypted[k])
            share = pair[: shamir.SHARE_BYTES] if k in dropped else pair[shamir.SHARE_BYTES :]
            if commitment(share) == hashes[k]:
                revealed[k] = share
        invalid = frozenset(dropped | (senders if strict else set())) - revealed.keys()
        return UnmaskingShares(
            {k: revealed[k] for k in revealed.keys() & senders}, {k: revealed[k] for k in revealed.keys() & dropped},
            invalid,
        )  # fmt: skip

    def _decrypted(self, sender: int, encryption_key: bytes, mask: bytes, encrypted: bytes) -> bytes:
        """This participant's shares of another participant's mask key and seed; empty where they were altered."""
        try:
            return decrypt(self._key_with(encryption_key), encrypted, _about(sender, self.index, mask))
        except SecureAggregationError:
            return b""

    def _key_with(self, encryption_key: bytes) -> bytes:
        return shared_key(self._encryption_key, encryption_key, b"encryption_key")


def wrong_shares(revealed: UnmaskingShares, by: int, key_shares: Mapping[int, KeyShares]) -> list[int]:
    """The participants of which ``by`` revealed another share than it was given.

    An honest participant compares shares with the same hashes before it reveals them.
    """
    wrong = [k for k, share in revealed.seeds.items() if commitment(share) != key_shares[k].seed_hashes[by]]
    return wrong + [k for k, share in revealed.keys.items() if commitment(share) != key_shares[k].key_hashes[by]]


def unmask(
    total: Words,
    sent: Iterable[int],
    key_shares: Mapping[int, KeyShares],
    unmasking: Mapping[int, UnmaskingShares],
    context: bytes,
    *,
    threshold: int,
    strict: bool,
) -> Words:
    """The sum without masks, modulo 2³². ``total`` is the sum of the masked words, ``unmasking`` the participants'
    shares, without those that `wrong_shares` finds. `InvalidShares` names a participant whose own shares are wrong."""
    senders = set(sent)
    for k in senders if strict else ():
        seed = _join(k, {j: shares.seeds[k] for j, shares in unmasking.items() if k in shares.seeds}, threshold)
        if commitment(seed) != key_shares[k].seed_hash:
            raise InvalidShares(k, "the shares of its seed do not give its seed")
        total = total - key_stream(seed, total.size)
    for k in set(key_shares) - senders:
        key = X25519PrivateKey.from_private_bytes(
            _join(k, {j: shares.keys[k] for j, shares in unmasking.items() if k in shares.keys}, threshold)
        )
        if key.public_key().public_bytes_raw() != key_shares[k].mask:
            raise InvalidShares(k, "the shares of its mask key do not give its mask key")
        for j in senders:
            pair = key_stream(shared_key(key, key_shares[j].mask, b"mask" + context), total.size)
            total = total - pair if k > j else total + pair
    return total


def secure_mean(
    values: Sequence[Floats], *, threshold: int | None = None, dropped: Iterable[int] = (), strict: bool = False
) -> NDArray[np.float64]:
    """All sums and shares in one function: the mean over the participants that did not drop out."""
    count = len(values)
    point, dropped_out = FixedPoint(count), set(dropped)
    threshold = threshold or threshold_of(count)
    participants = [Participant(k, secrets.token_bytes(32)) for k in range(count)]
    encryption_keys = {p.index: p.encryption_key for p in participants}
    key_shares = {p.index: p.share_keys(encryption_keys, threshold) for p in participants}
    masks = {p.index: p.public_mask_key for p in participants}
    senders = [p for p in participants if p.index not in dropped_out]
    total: Words = np.zeros(values[0].size, dtype=np.uint32)
    for p in senders:
        total = total + p.mask(point.words(values[p.index]).ravel(), masks, b"", strict=strict)
    sent, unmasking = [p.index for p in senders], {}
    for p in senders if dropped_out or strict else ():
        unmasking[p.index] = p.unmasking_shares(
            {k: shares.shares[p.index] for k, shares in key_shares.items()},
            {k: requested_hash(shares, k, p.index, sent) for k, shares in key_shares.items()},
            encryption_keys, masks, sent=sent, threshold=threshold, strict=strict,
        )  # fmt: skip
    total = unmask(total, sent, key_shares, unmasking, b"", threshold=threshold, strict=strict)
    return point.mean(total, float(len(sent))).reshape(values[0].shape)


def requested_hash(shares: KeyShares, sender: int, receiver: int, sent: Iterable[int]) -> bytes:
    """The hash of the share that the receiver is to reveal: of the seed of a participant that sent, else of its key."""
    return (shares.seed_hashes if sender in set(sent) else shares.key_hashes)[receiver]


def _about(sender: int, receiver: int, mask: bytes) -> bytes:
    return f"{sender}>{receiver} ".encode() + mask


def _join(owner: int, shares: Mapping[int, bytes], threshold: int) -> bytes:
    if len(shares) < threshold:
        raise InvalidShares(owner, f"there are {len(shares)} valid shares of its secrets, and {threshold} are needed")
    try:
        return shamir.join({k + 1: share for k, share in shares.items()})
    except ValueError as error:
        raise InvalidShares(owner, str(error)) from None
