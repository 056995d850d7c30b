"""Secure sums: pairwise masks that cancel, and secret shares that remove the masks of clients that drop out.

After Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017. Every participant
has an encryption key whose public half all know. One sum takes:

1. `Participant.share_keys`: a fresh mask key and a fresh seed. The public mask key is published; shares of both secrets
   (Shamir) are encrypted for every participant.
2. `Participant.mask`: the participant sends its integers plus all masks, modulo 2³².
3. `Participant.unmasking_shares`, where needed: shares of the mask keys of participants that dropped out; in a *strict*
   sum also shares of the seeds of those that sent. `unmask` removes the masks from the *sum*.

A sum that is not strict has no seed masks and needs no third step while everyone sends. Its price: a server that claims
a dropout that did not happen obtains the sum without that participant, and so the participant's payload. A strict sum
prevents this as long as participants agree on who dropped out: nobody reveals both secrets of one participant.
(`docs/privacy.md` lists what a dishonest server can still do.)
"""

import hashlib
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedchoir.privacy.secure_aggregation import shamir

Words = NDArray[np.uint32]
Floats = NDArray[np.floating]
MIN_CLIENTS = 3  # from a sum of two, each participant knows the other's summand


class SecureAggregationError(ValueError):
    """The sum cannot be computed, or must be refused."""


@dataclass(frozen=True)
class FixedPoint:
    """Fixed-point numbers of which ``count`` can be added modulo 2³²; 0 stays exactly 0.

    >>> point = FixedPoint(count=4, clip=1024.0)
    >>> float(point.total(point.words(np.array([1.5])) + point.words(np.array([-2.5])))[0]), point.places
    (-1.0, 18)
    """

    count: int
    clip: float = 1024.0

    @property
    def places(self) -> int:
        """Fractional bits: as many as leave room for ``count`` numbers up to ``clip``."""
        return math.floor(math.log2((2**31 - 1) // self.count / self.clip))

    def words(self, values: Floats) -> Words:
        """Values as integers; larger ones are clipped, non-finite ones refused."""
        if not np.isfinite(values).all():
            raise SecureAggregationError("only finite numbers can be summed")
        cut = np.clip(values.astype(np.float64), -self.clip, self.clip)
        return np.rint(cut * 2.0**self.places).astype(np.int64).astype(np.uint32)

    def clipped(self, values: Floats) -> int:
        """How many values exceed the clip."""
        return int((np.abs(values) > self.clip).sum())

    def total(self, words: Words) -> NDArray[np.float64]:
        """The sum of the values whose words were added."""
        return words.view(np.int32).astype(np.float64) * 2.0**-self.places


@dataclass(frozen=True)
class KeyShares:
    """A participant's contribution to one sum: a public mask key, the hash of its seed, and encrypted shares."""

    mask: bytes
    seed_hash: bytes
    shares: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class UnmaskingShares:
    """Decrypted shares by participant: seeds of those that sent, mask keys of those that dropped out."""

    seeds: Mapping[int, bytes]
    keys: Mapping[int, bytes]


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
    def encryption_key(self) -> bytes:
        """The public half of the encryption key."""
        return self._encryption_key.public_key().public_bytes_raw()

    def share_keys(self, encryption_keys: Mapping[int, bytes], threshold: int) -> KeyShares:
        """A public mask key, and encrypted shares of mask key and seed for every participant (itself included)."""
        if encryption_keys.get(self.index) != self.encryption_key or len(encryption_keys) < max(MIN_CLIENTS, threshold):
            raise SecureAggregationError(
                f"{len(encryption_keys)} participants: a sum needs at least 3, and the threshold"
            )
        if 2 * threshold <= len(encryption_keys):
            raise SecureAggregationError(f"threshold {threshold} of {len(encryption_keys)}: more than half is needed")
        public = self._mask_key.public_key().public_bytes_raw()
        points = [k + 1 for k in encryption_keys]
        keys = shamir.split(self.mask_key, points, threshold)
        seeds = shamir.split(self.seed, points, threshold)
        encrypted = {
            k: self._encrypted(k, encryption_keys[k], public, keys[k + 1] + seeds[k + 1]) for k in encryption_keys
        }
        return KeyShares(public, hashlib.sha256(self.seed).digest(), encrypted)

    def mask(self, words: Words, key_shares: Mapping[int, KeyShares], context: bytes, *, strict: bool) -> Words:
        """The masked words. Masks cancel only if all participants use the same ``context``."""
        if (
            len(key_shares) < MIN_CLIENTS
            or key_shares[self.index].mask != self._mask_key.public_key().public_bytes_raw()
        ):
            raise SecureAggregationError(
                "refused: the sum would hide nothing, or these keys do not belong to this participant"
            )
        masked = words + key_stream(self.seed, words.size) if strict else words.copy()
        for k, other in key_shares.items():
            if k != self.index:
                pair = key_stream(shared_key(self._mask_key, other.mask, b"mask" + context), words.size)
                masked = masked + pair if k > self.index else masked - pair
        return masked

    def decrypt_share(
        self, sender: int, encryption_key: bytes, share_keys: KeyShares, encrypted: bytes
    ) -> tuple[bytes, bytes]:
        """This participant's shares of another participant's mask key and seed."""
        key = shared_key(self._encryption_key, encryption_key, b"encryption_key")
        try:
            decrypted = ChaCha20Poly1305(key).decrypt(
                encrypted[:12], encrypted[12:], _associated_data(sender, self.index, share_keys.mask)
            )
        except InvalidTag:
            raise SecureAggregationError(f"the share from participant {sender} was altered in transit") from None
        return decrypted[: shamir.SHARE_BYTES], decrypted[shamir.SHARE_BYTES :]

    def unmasking_shares(
        self,
        encrypted: Mapping[int, bytes],
        encryption_keys: Mapping[int, bytes],
        key_shares: Mapping[int, KeyShares],
        *,
        sent: Iterable[int],
        threshold: int,
        strict: bool,
    ) -> UnmaskingShares:
        """Shares for unmasking: never both secrets of one participant, never below the threshold."""
        senders = set(sent)
        dropped = set(key_shares) - senders
        if self.index not in senders or not senders <= set(key_shares) or len(senders) < threshold:
            raise SecureAggregationError("refused: this would reveal more than a sum")
        if not strict and not dropped:
            raise SecureAggregationError("refused: nobody dropped out, so nothing needs unmasking")
        requested = dropped | (senders if strict else set())
        decrypted = {k: self.decrypt_share(k, encryption_keys[k], key_shares[k], encrypted[k]) for k in requested}
        return UnmaskingShares({k: decrypted[k][1] for k in requested & senders}, {k: decrypted[k][0] for k in dropped})

    def _encrypted(self, receiver: int, encryption_key: bytes, public: bytes, content: bytes) -> bytes:
        nonce = secrets.token_bytes(12)
        key = shared_key(self._encryption_key, encryption_key, b"encryption_key")
        return nonce + ChaCha20Poly1305(key).encrypt(nonce, content, _associated_data(self.index, receiver, public))


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
    shares."""
    senders = set(sent)
    dropped = set(key_shares) - senders
    if (dropped or strict) and len(unmasking) < threshold:
        raise SecureAggregationError(
            f"only {len(unmasking)} participants are left, and {threshold} are needed for unmasking"
        )
    for k in senders if strict else ():
        seed = _join({j: unmasking_shares.seeds[k] for j, unmasking_shares in unmasking.items()})
        if hashlib.sha256(seed).digest() != key_shares[k].seed_hash:
            raise SecureAggregationError(f"the shares of participant {k}'s seed do not match: at least one is wrong")
        total = total - key_stream(seed, total.size)
    for k in dropped:
        key = X25519PrivateKey.from_private_bytes(
            _join({j: unmasking_shares.keys[k] for j, unmasking_shares in unmasking.items()})
        )
        if key.public_key().public_bytes_raw() != key_shares[k].mask:
            raise SecureAggregationError(f"the shares of participant {k}'s key do not match: at least one is wrong")
        for j in senders:
            pair = key_stream(shared_key(key, key_shares[j].mask, b"mask" + context), total.size)
            total = total - pair if k > j else total + pair
    return total


def secure_mean(
    values: Sequence[Floats], *, threshold: int | None = None, dropped: Iterable[int] = (), strict: bool = False
) -> NDArray[np.float64]:
    """The whole protocol in one function: the mean over the participants that did not drop out."""
    count = len(values)
    point, dropped_out = FixedPoint(count), set(dropped)
    threshold = threshold or majority(count)
    participants = [Participant(k, secrets.token_bytes(32)) for k in range(count)]
    encryption_keys = {p.index: p.encryption_key for p in participants}
    key_shares = {p.index: p.share_keys(encryption_keys, threshold) for p in participants}
    senders = [p for p in participants if p.index not in dropped_out]
    total: Words = np.zeros(values[0].size, dtype=np.uint32)
    for p in senders:
        total = total + p.mask(point.words(values[p.index]).ravel(), key_shares, b"", strict=strict)
    sent, unmasking = [p.index for p in senders], {}
    if dropped_out or strict:
        for p in senders:
            encrypted = {k: share_keys.shares[p.index] for k, share_keys in key_shares.items()}
            unmasking[p.index] = p.unmasking_shares(
                encrypted, encryption_keys, key_shares, sent=sent, threshold=threshold, strict=strict
            )
    total = unmask(total, sent, key_shares, unmasking, b"", threshold=threshold, strict=strict)
    return point.total(total).reshape(values[0].shape) / len(sent)


def majority(count: int) -> int:
    """The smallest integer above ``count / 2``: two sums of that size always share a participant."""
    return count // 2 + 1


def key_stream(key: bytes, count: int) -> Words:
    """``count`` pseudo-random words (ChaCha20). A key is used for one sum only, so the nonce is 0."""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(cipher.update(bytes(4 * count)), dtype="<u4").astype(np.uint32)


def shared_key(key: X25519PrivateKey, public: bytes, purpose: bytes) -> bytes:
    """The key that two participants share (X25519 and HKDF)."""
    shared = key.exchange(X25519PublicKey.from_public_bytes(public))
    return HKDF(hashes.SHA256(), 32, salt=None, info=b"fedchoir secure sum " + purpose).derive(shared)


def _associated_data(sender: int, receiver: int, mask: bytes) -> bytes:
    return f"{sender}>{receiver} ".encode() + mask


def _join(shares: Mapping[int, bytes]) -> bytes:
    try:
        return shamir.join({k + 1: share for k, share in shares.items()})
    except ValueError as error:
        raise SecureAggregationError(str(error)) from None
