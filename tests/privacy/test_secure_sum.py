"""Secure sums: the mean comes out right, survives drop-outs, and a single masked answer carries nothing."""

from __future__ import annotations

import contextlib
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sympy import isprime, prevprime

from fedchoir.privacy import shamir
from fedchoir.privacy.secure_sum import Participant, Quantiser, SecureSumError, secure_mean, stream, unmask


def logits(clients: int, shape: tuple[int, ...] = (50, 10), scale: float = 2.0) -> list[np.ndarray]:
    rng = np.random.default_rng(clients)
    return [rng.normal(0, scale, shape).astype(np.float32) for _ in range(clients)]


@pytest.mark.parametrize("clients", [3, 4, 7, 20])
def test_it_is_the_plain_mean_within_1e_4(clients: int) -> None:
    values = logits(clients)
    assert max(np.abs(v).max() for v in values) < 11
    got = secure_mean(values, quantiser=Quantiser(clip=16.0))
    assert np.abs(got - np.mean(values, axis=0)).max() < 1e-4


@pytest.mark.parametrize(("clients", "dropped"), [(4, {0}), (5, {1, 4}), (7, {0, 3, 6})])
def test_it_survives_drop_outs_down_to_the_threshold(clients: int, dropped: set[int]) -> None:
    values = logits(clients)
    got = secure_mean(values, dropped=dropped, quantiser=Quantiser(clip=16.0))
    left = [v for k, v in enumerate(values) if k not in dropped]
    assert np.abs(got - np.mean(left, axis=0)).max() < 1e-4


def test_below_the_threshold_there_is_no_sum() -> None:
    with pytest.raises(SecureSumError, match="more than a sum"):
        secure_mean(logits(5), dropped={0, 1, 2})


def test_someone_may_vanish_after_sending() -> None:
    values = logits(5)
    people = [Participant(k, threshold=3, quantiser=Quantiser(clip=16.0)) for k in range(5)]
    adverts = {p.index: p.advert() for p in people}
    shares = {p.index: p.shares(adverts) for p in people}
    masked = {p.index: p.mask(values[p.index], adverts) for p in people if p.index != 4}  # 4 drops before it sends
    still = [0, 2, 3]  # and 1 after
    reveals = {k: people[k].reveal({j: shares[j][k] for j in adverts}, masked, {4}) for k in still}
    got = Quantiser(clip=16.0).mean(unmask(masked, adverts, reveals, 3), 4)
    assert np.abs(got - np.mean(values[:4], axis=0)).max() < 1e-4
    with pytest.raises(SecureSumError, match="only 2 participants"):
        unmask(masked, adverts, {k: reveals[k] for k in (0, 2)}, 3)


def test_numbers_beyond_the_clip_are_cut_off_and_counted() -> None:
    q = Quantiser(clip=8.0)
    values = [np.array([100.0, 1.0]), np.array([0.0, 1.0]), np.array([-9.0, 1.0])]
    assert q.clipped(values[0]) == 1
    got = secure_mean(values, quantiser=q)
    assert np.abs(got - np.array([0.0, 1.0])).max() < 1e-4  # (8 + 0 − 8) / 3
    with pytest.raises(SecureSumError, match="finite"):
        q.words(np.array([float("nan")]))


def test_a_masked_answer_carries_nothing_of_the_plain_one() -> None:
    """Constant, and very unlike, inputs give words that are uniform and do not correlate with them or each other."""
    size = 40_000
    plain = np.concatenate([np.full(size // 2, -7.9), np.full(size // 2, 7.9)])
    people = [Participant(k, threshold=2) for k in range(3)]
    adverts = {p.index: p.advert() for p in people}
    for p in people:
        p.shares(adverts)
    masked = people[0].mask(plain, adverts)
    counts = np.bincount(masked >> 24, minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-4
    for bit in range(32):
        ones = int(((masked >> bit) & 1).sum())
        assert abs(ones - size / 2) < 5 * np.sqrt(size) / 2
    low, high = masked[: size // 2].astype(np.float64), masked[size // 2 :].astype(np.float64)
    assert stats.ks_2samp(low, high).pvalue > 1e-4
    assert abs(np.corrcoef(plain, masked)[0, 1]) < 5 / np.sqrt(size)
    again = Participant(0, threshold=2)
    fresh = {**adverts, 0: again.advert()}
    again.shares(fresh)
    assert abs(np.corrcoef(masked, again.mask(plain, fresh))[0, 1]) < 5 / np.sqrt(size)


def test_a_participant_never_opens_more_than_a_sum() -> None:
    people = [Participant(k, threshold=2) for k in range(3)]
    adverts = {p.index: p.advert() for p in people}
    shares = {p.index: p.shares(adverts) for p in people}
    sealed = {j: shares[j][0] for j in adverts}
    with pytest.raises(SecureSumError, match="more than a sum"):
        people[0].reveal(sealed, {0, 1, 2}, {2})  # both halves of one participant
    people[0].reveal(sealed, {0, 1}, {2})
    with pytest.raises(SecureSumError, match="more than a sum"):
        people[0].reveal(sealed, {0, 1, 2}, set())  # a second time
    with pytest.raises(SecureSumError, match="changed on its way"):
        people[1].reveal({**{j: shares[j][1] for j in adverts}, 2: shares[2][0]}, {0, 1, 2}, set())


@pytest.mark.parametrize(("clients", "threshold", "why"), [(2, 2, "below 3"), (4, 2, "more than half")])
def test_it_refuses_what_would_hide_nothing(clients: int, threshold: int, why: str) -> None:
    with pytest.raises(SecureSumError, match=why):
        secure_mean(logits(clients), threshold=threshold)


def test_bytes_and_seconds_for_5000_by_10_logits() -> None:
    """At most twice the plain bytes and below one second for everything, server and all clients together."""
    values = logits(4, (5000, 10))
    start = time.perf_counter()
    secure_mean(values)
    assert time.perf_counter() - start < 1.0
    people = [Participant(k, threshold=3) for k in range(4)]
    adverts = {p.index: p.advert() for p in people}
    shares = [p.shares(adverts) for p in people]
    up = people[0].mask(values[0], adverts).nbytes + sum(map(len, shares[0].values())) + 64
    up += 2 * 4 * shamir.SHARE_BYTES  # the reveal
    down = sum(len(s[0]) for s in shares) + 64 * 4
    assert up + down < 1.02 * values[0].nbytes


def test_streams_are_the_ciphers_own() -> None:
    """The first keystream block of ChaCha20 for the all-zero key and nonce, as in RFC 8439, appendix A.1."""
    assert stream(bytes(32), 4).tobytes().hex() == "76b8e0ada0f13d90405d6ae55386bd28"


def test_the_field_is_the_smallest_that_holds_every_key() -> None:
    assert isprime(shamir.PRIME)
    assert prevprime(shamir.PRIME) < 2**256


@given(secret=st.binary(min_size=32, max_size=32), extra=st.integers(0, 3), threshold=st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_any_threshold_of_shares_gives_the_secret(secret: bytes, extra: int, threshold: int) -> None:
    points = list(range(1, threshold + extra + 1))
    shares = shamir.split(secret, points, threshold)
    assert shamir.join({x: shares[x] for x in points[-threshold:]}) == secret
    assert shamir.join(shares) == secret


def test_one_share_too_few_gives_nothing() -> None:
    """With a share missing, every secret is as likely: another polynomial through the known shares has it."""
    hits = 0
    for _ in range(50):
        shares = shamir.split(b"s" * 32, [1, 2, 3], 3)
        with contextlib.suppress(ValueError):
            hits += shamir.join({1: shares[1], 2: shares[2]}) == b"s" * 32
    assert hits == 0
