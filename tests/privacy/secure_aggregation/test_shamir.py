"""Shamir's secret sharing: enough shares give the secret, fewer give nothing."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import isprime, prevprime

from fedchoir.privacy.secure_aggregation import shamir


def test_the_prime_is_the_smallest_above_all_keys() -> None:
    assert isprime(shamir.PRIME)
    assert prevprime(shamir.PRIME) < 2**256


@given(secret=st.binary(min_size=32, max_size=32), extra=st.integers(0, 3), threshold=st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_any_threshold_of_shares_gives_the_secret(secret: bytes, extra: int, threshold: int) -> None:
    points = list(range(1, threshold + extra + 1))
    shares = shamir.split(secret, points, threshold)
    assert shamir.join({x: shares[x] for x in points[-threshold:]}) == secret
    assert shamir.join(shares) == secret


def test_one_share_too_few_reveals_nothing() -> None:
    """Through the known shares and every other secret there is a polynomial, so all secrets are equally likely."""
    hits = 0
    for _ in range(50):
        shares = shamir.split(b"s" * 32, [1, 2, 3], 3)
        with contextlib.suppress(ValueError):
            hits += shamir.join({1: shares[1], 2: shares[2]}) == b"s" * 32
    assert hits == 0


def test_altered_shares_give_another_secret_or_an_error() -> None:
    shares = shamir.split(b"s" * 32, [1, 2, 3], 2)
    try:
        joined = shamir.join({**shares, 2: bytes(33)})
    except ValueError:
        joined = b""
    assert joined != b"s" * 32


@pytest.mark.parametrize(
    ("secret", "points", "threshold"),
    [
        (b"short", [1, 2], 2),
        (b"s" * 32, [1, 2], 3),
        (b"s" * 32, [1, 1], 2),
        (b"s" * 32, [0, 1], 2),
        (b"s" * 32, [1], 0),
    ],
)
def test_impossible_splits_are_refused(secret: bytes, points: list[int], threshold: int) -> None:
    with pytest.raises(ValueError, match="a secret of 32 bytes"):
        shamir.split(secret, points, threshold)
