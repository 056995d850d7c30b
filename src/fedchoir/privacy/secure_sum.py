"""Sums whose summands nobody sees: pairwise masks that cancel, and shares that lift them when someone drops out.

After Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017, against a server
that is curious but follows the protocol. One sum takes four steps:

1. `Participant.advert`: everyone publishes two fresh X25519 keys.
2. `Participant.shares`: everyone splits its mask key and its own seed among the others (Shamir), sealed for each.
3. `Participant.mask`: everyone sends its quantised numbers plus all masks, modulo 2³².
4. `Participant.reveal`: for those who sent, shares of their own seed; for those who dropped out, shares of their mask
   key. `unmask` takes the masks off the *sum*.

Only the sum is learned, so it fits methods whose server needs a mean. Numbers beyond ``clip`` are cut off, openly.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedchoir.privacy import shamir

Words = NDArray[np.uint32]
Floats = NDArray[np.floating]


class SecureSumError(ValueError):
    """The sum cannot be had, or must not."""


@dataclass(frozen=True)
class Quantiser:
    """Real numbers as whole ones that can be added modulo 2³²: ``bits`` bits over [−clip, clip].

    >>> q = Quantiser(clip=8.0, bits=22)
    >>> float(q.mean(q.words(np.array([1.5])) + q.words(np.array([2.5])), 2).round(5)[0])
    2.0
    """

    clip: float = 8.0
    bits: int = 22

    def __post_init__(self) -> None:
        if not (self.clip > 0 and 2 <= self.bits <= 30):
            raise SecureSumError(f"clip {self.clip} and bits {self.bits}: wanted a clip above 0 and 2 to 30 bits")

    @property
    def most(self) -> int:
        """How many participants fit into 32 bits."""
        return 2 ** (32 - self.bits)

    def words(self, values: Floats) -> Words:
        """Numbers beyond the clip are cut off; those that are not finite are refused."""
        if not np.isfinite(values).all():
            raise SecureSumError("only finite numbers can be summed")
        cut = np.clip(values.astype(np.float64), -self.clip, self.clip)
        return np.rint((cut + self.clip) * self._scale).astype(np.uint32)

    def clipped(self, values: Floats) -> int:
        """How many numbers would be cut off."""
        return int((np.abs(values) > self.clip).sum())

    def mean(self, total: Words, count: int) -> NDArray[np.float64]:
        return total.astype(np.float64) / (self._scale * count) - self.clip

    @property
    def _scale(self) -> float:
        return (2**self.bits - 1) / (2 * self.clip)


@dataclass(frozen=True)
class Advert:
    """A participant's public keys for one sum."""

    mask: bytes
    seal: bytes


@dataclass(frozen=True)
class Reveal:
    """What a participant opens about the others, once it is known who sent: shares by participant."""

    seeds: dict[int, bytes]
    keys: dict[int, bytes]


class Participant:
    """One participant's part in one sum. Made anew for every sum: keys and seeds are used once."""

    def __init__(self, index: int, *, threshold: int, quantiser: Quantiser | None = None) -> None:
        self.index = index
        self.threshold = threshold
        self.quantiser = quantiser or Quantiser()
        self._mask_key = X25519PrivateKey.generate()
        self._seal_key = X25519PrivateKey.generate()
        self._seed = secrets.token_bytes(32)
        self._adverts: dict[int, Advert] = {}
        self._revealed = False

    def advert(self) -> Advert:
        return Advert(self._mask_key.public_key().public_bytes_raw(), self._seal_key.public_key().public_bytes_raw())

    def shares(self, adverts: Mapping[int, Advert]) -> dict[int, bytes]:
        """Sealed shares of mask key and seed, one for each participant (itself among them)."""
        if self.index not in adverts or len(adverts) < max(3, self.threshold):
            raise SecureSumError(f"{len(adverts)} participants: a sum hides nothing below 3, or below the threshold")
        if 2 * self.threshold <= len(adverts):
            raise SecureSumError(f"threshold {self.threshold} of {len(adverts)}: wanted more than half of them")
        if len(adverts) > self.quantiser.most:
            raise SecureSumError(f"{len(adverts)} participants, and {self.quantiser.bits} bits leave room for fewer")
        self._adverts = dict(adverts)
        points = [k + 1 for k in adverts]
        keys = shamir.split(self._mask_key.private_bytes_raw(), points, self.threshold)
        seeds = shamir.split(self._seed, points, self.threshold)
        return {k: self._seal(k, keys[k + 1] + seeds[k + 1]) for k in adverts}

    def mask(self, values: Floats, present: Iterable[int]) -> Words:
        """The quantised numbers under all masks; ``present`` are those whose shares everyone has."""
        masked = self.quantiser.words(values) + stream(self._seed, values.size).reshape(values.shape)
        for k in present:
            if k != self.index:
                pair = stream(_agree(self._mask_key, self._adverts[k].mask, b"mask"), values.size)
                masked = masked + (pair if k > self.index else -pair).reshape(values.shape)
        return masked

    def reveal(self, sealed: Mapping[int, bytes], sent: Iterable[int], dropped: Iterable[int]) -> Reveal:
        """Shares that lift the masks: never both of one participant's, never twice, never below the threshold."""
        sent, dropped = set(sent), set(dropped)
        if self._revealed or sent & dropped or len(sent) < self.threshold:
            raise SecureSumError("refused: this would show more than a sum")
        self._revealed = True
        opened = {k: self._open(k, sealed[k]) for k in sent | dropped}
        half = shamir.SHARE_BYTES
        return Reveal({k: opened[k][half:] for k in sent}, {k: opened[k][:half] for k in dropped})

    def _seal(self, receiver: int, content: bytes) -> bytes:
        nonce = secrets.token_bytes(12)
        key = _agree(self._seal_key, self._adverts[receiver].seal, b"seal")
        about = f"{self.index}>{receiver}".encode()
        return nonce + ChaCha20Poly1305(key).encrypt(nonce, content, about)

    def _open(self, sender: int, sealed: bytes) -> bytes:
        key = _agree(self._seal_key, self._adverts[sender].seal, b"seal")
        try:
            return ChaCha20Poly1305(key).decrypt(sealed[:12], sealed[12:], f"{sender}>{self.index}".encode())
        except InvalidTag:
            raise SecureSumError(f"the share from participant {sender} was changed on its way") from None


def unmask(
    masked: Mapping[int, Words],
    adverts: Mapping[int, Advert],
    reveals: Mapping[int, Reveal],
    threshold: int,
) -> Words:
    """The sum of what was sent, modulo 2³², by the server: masks of those who sent and of those who dropped out.

    ``adverts`` are of all whose masks went into the sum; ``reveals`` come from those who are still there.
    """
    if len(reveals) < threshold:
        raise SecureSumError(f"only {len(reveals)} participants are left, and {threshold} are needed to lift the masks")
    some = next(iter(masked.values()))
    total: Words = np.zeros_like(some)
    for words in masked.values():
        total = total + words
    for k in masked:
        seed = shamir.join({j + 1: reveal.seeds[k] for j, reveal in reveals.items()})
        total = total - stream(seed, some.size).reshape(some.shape)
    for k in adverts.keys() - masked.keys():
        key = X25519PrivateKey.from_private_bytes(shamir.join({j + 1: reveal.keys[k] for j, reveal in reveals.items()}))
        for j in masked:
            pair = stream(_agree(key, adverts[j].mask, b"mask"), some.size).reshape(some.shape)
            total = total - pair if k > j else total + pair
    return total


def secure_mean(
    values: Sequence[Floats],
    *,
    threshold: int | None = None,
    dropped: Iterable[int] = (),
    quantiser: Quantiser | None = None,
) -> NDArray[np.float64]:
    """The whole protocol in one place: the mean over those who did not drop out before they sent."""
    quantiser = quantiser or Quantiser()
    threshold = threshold or math.floor(len(values) / 2) + 1
    people = [Participant(k, threshold=threshold, quantiser=quantiser) for k in range(len(values))]
    adverts = {p.index: p.advert() for p in people}
    shares = {p.index: p.shares(adverts) for p in people}
    gone = set(dropped)
    masked = {p.index: p.mask(values[p.index], adverts) for p in people if p.index not in gone}
    reveals = {
        p.index: p.reveal({k: shares[k][p.index] for k in adverts}, masked, gone) for p in people if p.index not in gone
    }
    return quantiser.mean(unmask(masked, adverts, reveals, threshold), len(masked))


def stream(key: bytes, count: int) -> Words:
    """``count`` words that look random to whoever lacks the key. (A key is used for one sum only: the nonce is 0.)"""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(cipher.update(bytes(4 * count)), dtype="<u4").astype(np.uint32)


def _agree(key: X25519PrivateKey, public: bytes, purpose: bytes) -> bytes:
    shared = key.exchange(X25519PublicKey.from_public_bytes(public))
    return HKDF(hashes.SHA256(), 32, salt=None, info=b"fedchoir secure sum " + purpose).derive(shared)
