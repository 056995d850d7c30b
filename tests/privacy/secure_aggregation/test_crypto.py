"""Secure sums: the mean is right, dropouts are survived, and a single masked payload reveals nothing."""

from __future__ import annotations

import secrets

import numpy as np
import pytest
from scipy import stats
from tests.helpers import assert_uniform

from fedchoir.privacy.secure_aggregation.crypto import (
    FixedPoint,
    KeyShares,
    Participant,
    SecureAggregationError,
    Words,
    key_stream,
    majority,
    secure_mean,
    unmask,
)


def logits(clients: int, shape: tuple[int, ...] = (50, 10), scale: float = 2.0) -> list[np.ndarray]:
    rng = np.random.default_rng(clients)
    return [rng.normal(0, scale, shape).astype(np.float32) for _ in range(clients)]


class Federation:
    """Participants that know each other's encryption keys and have shared their keys for one sum."""

    def __init__(self, count: int) -> None:
        self.threshold = majority(count)
        self.participants = [Participant(k, secrets.token_bytes(32)) for k in range(count)]
        self.encryption_keys = {p.index: p.encryption_key for p in self.participants}
        self.key_shares = {p.index: p.share_keys(self.encryption_keys, self.threshold) for p in self.participants}

    def masked(self, k: int, words: Words, strict: bool = False) -> Words:
        return self.participants[k].mask(words, self.key_shares, b"", strict=strict)

    def unmasking_shares(self, k: int, sent: set[int], strict: bool = True, **changes: bytes) -> object:
        encrypted = {j: share_keys.shares[k] for j, share_keys in self.key_shares.items()}
        encrypted |= {int(j[1:]): share for j, share in changes.items()}
        return self.participants[k].unmasking_shares(
            encrypted, self.encryption_keys, self.key_shares, sent=sent, threshold=self.threshold, strict=strict
        )


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("clients", [3, 4, 7, 20])
def test_it_is_the_plain_mean_within_1e_4(clients: int, strict: bool) -> None:
    values = logits(clients)
    got = secure_mean(values, strict=strict)
    assert np.abs(got - np.mean(values, axis=0)).max() < 1e-5


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(("clients", "dropped"), [(3, {1}), (4, {0}), (5, {1, 4}), (7, {0, 3, 6})])
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
    values, federation, point = logits(5), Federation(5), FixedPoint(5)
    sent = {0, 1, 2, 3}  # 4 drops out before it sends
    total = sum((federation.masked(k, point.words(values[k]).ravel(), strict) for k in sent), start=np.uint32(0))
    unmasking = {k: federation.unmasking_shares(k, sent, strict) for k in (0, 2, 3)}  # and 1 after it
    done = {"threshold": 3, "strict": strict}
    got = point.total(unmask(total, sent, federation.key_shares, unmasking, b"", **done)) / 4
    assert np.abs(got - np.mean(values[:4], axis=0).ravel()).max() < 1e-5
    with pytest.raises(SecureAggregationError, match="only 2 participants"):
        unmask(total, sent, federation.key_shares, {k: unmasking[k] for k in (0, 2)}, b"", **done)
    with pytest.raises(SecureAggregationError, match="do not match"):
        unmask(
            total,
            sent,
            federation.key_shares,
            {**unmasking, 0: Federation(5).unmasking_shares(0, sent, strict)},
            b"",
            **done,
        )


def test_numbers_beyond_the_clip_are_clipped_and_counted() -> None:
    point = FixedPoint(3, clip=8.0)
    values = [np.array([100.0, 1.0]), np.array([0.0, 1.0]), np.array([-9.0, 1.0])]
    assert point.clipped(values[0]) == 1
    assert point.total(point.words(values[0]) + point.words(values[1]) + point.words(values[2])).tolist() == [0, 3]
    with pytest.raises(SecureAggregationError, match="finite"):
        point.words(np.array([float("nan")]))


@pytest.mark.parametrize("count", [3, 4, 5, 64, 1000])
def test_a_sum_of_clipped_numbers_does_not_overflow(count: int) -> None:
    point = FixedPoint(count)
    for value in (1024.0, -1024.0, 0.0):
        words = point.words(np.array([value])).astype(np.uint64) * count
        assert point.total(words.astype(np.uint32))[0] == value * count
    assert 2.0**-point.places < (2e-4 if count < 100 else 2e-3)


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
    with pytest.raises(SecureAggregationError, match="altered in transit"):
        federation.unmasking_shares(1, {0, 1, 2}, k2=federation.key_shares[2].shares[0])


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


@pytest.mark.parametrize(("clients", "threshold", "why"), [(2, 2, "at least 3"), (4, 2, "more than half")])
def test_it_refuses_what_would_hide_nothing(clients: int, threshold: int, why: str) -> None:
    with pytest.raises(SecureAggregationError, match=why):
        secure_mean(logits(clients), threshold=threshold)


def test_masks_cancel_only_if_all_use_the_same_context() -> None:
    federation, words = Federation(3), np.zeros(20_000, dtype=np.uint32)
    same = sum(federation.masked(k, words) for k in range(3))
    assert not same.any()
    other = federation.participants[2].mask(words, federation.key_shares, b"other weights", strict=False)
    assert_uniform(federation.masked(0, words) + federation.masked(1, words) + other)
    with pytest.raises(SecureAggregationError, match="do not belong to this participant"):
        federation.participants[0].mask(
            words, {**federation.key_shares, 0: KeyShares(bytes(32), b"")}, b"", strict=False
        )


def test_key_streams_are_chacha20() -> None:
    """The first keystream block of ChaCha20 for the all-zero key and nonce, as in RFC 8439, appendix A.1."""
    assert key_stream(bytes(32), 4).tobytes().hex() == "76b8e0ada0f13d90405d6ae55386bd28"
