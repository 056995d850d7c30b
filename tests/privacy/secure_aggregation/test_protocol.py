"""Secure sums: the mean is right, dropouts are survived, and a single masked payload reveals nothing."""

from __future__ import annotations

import secrets

import numpy as np
import pytest
from scipy import stats
from tests.helpers import assert_uniform

from fedchoir.privacy.secure_aggregation import shamir
from fedchoir.privacy.secure_aggregation.crypto import key_stream
from fedchoir.privacy.secure_aggregation.fixed_point import FixedPoint, Words
from fedchoir.privacy.secure_aggregation.protocol import (
    InvalidShares,
    Participant,
    UnmaskingShares,
    requested_hash,
    secure_mean,
    unmask,
    wrong_shares,
)
from fedchoir.privacy.secure_aggregation.terms import SecureAggregationError, threshold_of


def logits(clients: int, shape: tuple[int, ...] = (50, 10), scale: float = 2.0) -> list[np.ndarray]:
    rng = np.random.default_rng(clients)
    return [rng.normal(0, scale, shape).astype(np.float32) for _ in range(clients)]


class Federation:
    """Participants that know each other's encryption keys and have shared their keys for one sum."""

    def __init__(self, count: int) -> None:
        self.threshold = threshold_of(count)
        self.participants = [Participant(k, secrets.token_bytes(32)) for k in range(count)]
        self.encryption_keys = {p.index: p.encryption_key for p in self.participants}
        self.key_shares = {p.index: p.share_keys(self.encryption_keys, self.threshold) for p in self.participants}
        self.masks = {p.index: p.public_mask_key for p in self.participants}

    def masked(self, k: int, words: Words, strict: bool = False) -> Words:
        return self.participants[k].mask(words, self.masks, b"", strict=strict)

    def unmasking_shares(self, k: int, sent: set[int], strict: bool = True, **changes: bytes) -> UnmaskingShares:
        encrypted = {j: shares.shares[k] for j, shares in self.key_shares.items()}
        encrypted |= {int(j[1:]): share for j, share in changes.items()}
        hashes = {j: requested_hash(shares, j, k, sent) for j, shares in self.key_shares.items()}
        return self.participants[k].unmasking_shares(
            encrypted, hashes, self.encryption_keys, self.masks, sent=sent, threshold=self.threshold, strict=strict
        )


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("clients", [3, 4, 7, 20])
def test_it_is_the_plain_mean_within_1e_4(clients: int, strict: bool) -> None:
    values = logits(clients)
    got = secure_mean(values, strict=strict)
    assert np.abs(got - np.mean(values, axis=0)).max() < 1e-5


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(("clients", "dropped"), [(4, {0}), (5, {4}), (7, {0, 6}), (10, {1, 2, 3})])
def test_dropouts_are_survived_down_to_the_threshold(clients: int, dropped: set[int], strict: bool) -> None:
    values = logits(clients)
    got = secure_mean(values, dropped=dropped, strict=strict)
    left = [v for k, v in enumerate(values) if k not in dropped]
    assert np.abs(got - np.mean(left, axis=0)).max() < 1e-5


def test_below_the_threshold_there_is_no_sum() -> None:
    with pytest.raises(SecureAggregationError, match="more than a sum"):
        secure_mean(logits(5), dropped={0, 1, 2})


@pytest.mark.parametrize("strict", [False, True])
def test_a_participant_may_disappear_after_sending(strict: bool) -> None:
    values, federation, point = logits(7), Federation(7), FixedPoint(7)
    sent = {0, 1, 2, 3, 4, 5}  # 6 drops out before it sends
    total = sum((federation.masked(k, point.words(values[k]).ravel(), strict) for k in sent), start=np.uint32(0))
    unmasking = {k: federation.unmasking_shares(k, sent, strict) for k in (0, 2, 3, 4, 5)}  # and 1 after it
    done = {"threshold": 5, "strict": strict}
    got = point.total(unmask(total, sent, federation.key_shares, unmasking, b"", **done)) / 6
    assert np.abs(got - np.mean(values[:6], axis=0).ravel()).max() < 1e-5
    with pytest.raises(InvalidShares, match="there are 4 valid shares of its secrets, and 5 are needed"):
        unmask(total, sent, federation.key_shares, {k: unmasking[k] for k in (0, 2, 3, 4)}, b"", **done)


@pytest.mark.parametrize("strict", [False, True])
def test_a_wrong_share_names_the_participant_that_revealed_it(strict: bool) -> None:
    """The hashes that owners publish tell which share is wrong; the sum is unmasked with the others."""
    federation, sent = Federation(5), {0, 1, 2, 3}
    honest = {k: federation.unmasking_shares(k, sent, strict) for k in sent}
    assert all(wrong_shares(shares, k, federation.key_shares) == [] for k, shares in honest.items())
    forged = UnmaskingShares({k: bytes(33) for k in honest[0].seeds}, {4: bytes(33)})
    assert sorted(wrong_shares(forged, 0, federation.key_shares)) == [*sorted(forged.seeds), 4]
    swapped = honest[1]  # shares of another participant
    assert 4 in wrong_shares(swapped, 0, federation.key_shares)


@pytest.mark.parametrize("strict", [False, True])
def test_an_owner_that_shares_another_secret_is_named(strict: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Participant 4 publishes hashes that match its shares, but the shares do not give its keys."""
    federation, split = Federation(5), shamir.split
    with monkeypatch.context() as patched:
        patched.setattr(shamir, "split", lambda secret, *rest: split(secrets.token_bytes(32), *rest))
        federation.key_shares[4] = federation.participants[4].share_keys(federation.encryption_keys, 4)
    sent = {1, 2, 3, 4} if strict else {0, 1, 2, 3}
    unmasking = {k: federation.unmasking_shares(k, sent, strict) for k in sent}
    assert all(wrong_shares(shares, k, federation.key_shares) == [] for k, shares in unmasking.items())
    with pytest.raises(InvalidShares, match="do not") as error:
        unmask(np.zeros(4, np.uint32), sent, federation.key_shares, unmasking, b"", threshold=4, strict=strict)
    assert error.value.participant == 4


@pytest.mark.parametrize("strict", [False, True])
def test_a_masked_payload_reveals_nothing_of_the_plain_one(strict: bool) -> None:
    """Very different constant inputs give uniform words that correlate neither with them nor with each other."""
    size = 40_000
    plain = np.concatenate([np.full(size // 2, -7.9), np.full(size // 2, 7.9)])
    words = FixedPoint(3).words(plain)
    masked = Federation(3).masked(0, words, strict)
    assert_uniform(masked)
    low, high = masked[: size // 2].astype(np.float64), masked[size // 2 :].astype(np.float64)
    assert stats.ks_2samp(low, high).pvalue > 1e-4
    assert abs(np.corrcoef(plain, masked)[0, 1]) < 5 / np.sqrt(size)
    again = Federation(3).masked(0, words, strict)
    assert abs(np.corrcoef(masked, again)[0, 1]) < 5 / np.sqrt(size)


def test_nobody_reveals_both_secrets_of_one_participant() -> None:
    """Of each participant either the seed (it sent) or the mask key (it dropped out) is revealed, never both."""
    federation = Federation(4)
    decrypted = federation.unmasking_shares(0, {0, 1, 2})
    assert set(decrypted.seeds) == {0, 1, 2}
    assert set(decrypted.keys) == {3}
    with pytest.raises(SecureAggregationError, match="more than a sum"):
        federation.unmasking_shares(0, {1, 2, 3})  # it sent itself
    with pytest.raises(SecureAggregationError, match="more than a sum"):
        federation.unmasking_shares(0, {0, 1})  # below the threshold
    with pytest.raises(SecureAggregationError, match="nothing needs unmasking"):
        federation.unmasking_shares(0, {0, 1, 2, 3}, strict=False)
    altered = federation.unmasking_shares(1, {0, 1, 2}, k2=federation.key_shares[2].shares[0])
    assert (set(altered.seeds), set(altered.keys), altered.invalid) == ({0, 1}, {3}, {2})


def test_a_strict_payload_stays_hidden_though_its_mask_key_is_revealed() -> None:
    """A server that falsely claims a dropout obtains noise in a strict sum, and the payload otherwise."""
    point, secret = FixedPoint(4), np.full(20_000, 3.25)
    for strict in (True, False):
        federation = Federation(4)
        sent = {k: federation.masked(k, point.words(secret * (k == 3)), strict) for k in range(4)}
        unmasking = {k: federation.unmasking_shares(k, {0, 1, 2}, strict) for k in range(3)}
        done = {"threshold": 3, "strict": strict}
        rest = unmask(sent[0] + sent[1] + sent[2], {0, 1, 2}, federation.key_shares, unmasking, b"", **done)
        total = sent[0] + sent[1] + sent[2] + sent[3]
        if strict:
            for k in range(3):
                total = total - key_stream(federation.participants[k].seed, total.size)  # the server knows these seeds
            assert_uniform(total - rest)
        else:
            assert point.total(total - rest).tolist() == secret.tolist()


@pytest.mark.parametrize(
    ("clients", "threshold", "why"), [(2, 2, "at least 3"), (4, 2, "threshold 2 of 4: 3 is needed")]
)
def test_it_refuses_what_would_hide_nothing(clients: int, threshold: int, why: str) -> None:
    with pytest.raises(SecureAggregationError, match=why):
        secure_mean(logits(clients), threshold=threshold)


def test_masks_cancel_only_if_all_use_the_same_context() -> None:
    federation, words = Federation(3), np.zeros(20_000, dtype=np.uint32)
    same = sum(federation.masked(k, words) for k in range(3))
    assert not same.any()
    other = federation.participants[2].mask(words, federation.masks, b"other weights", strict=False)
    assert_uniform(federation.masked(0, words) + federation.masked(1, words) + other)
    with pytest.raises(SecureAggregationError, match="do not belong to this participant"):
        federation.participants[0].mask(words, {**federation.masks, 0: bytes(32)}, b"", strict=False)
