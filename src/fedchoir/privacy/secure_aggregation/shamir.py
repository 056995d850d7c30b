"""Shamir's secret sharing: any ``threshold`` of the shares give the secret, fewer give nothing at all."""

import secrets
from collections.abc import Mapping

PRIME = 2**256 + 297  # the smallest prime above all 32-byte numbers
SHARE_BYTES = 33


def split(secret: bytes, points: list[int], threshold: int) -> dict[int, bytes]:
    """One share of a 32-byte secret for each point (a number above 0).

    >>> shares = split(b"k" * 32, [1, 2, 3, 4], threshold=3)
    >>> join({1: shares[1], 3: shares[3], 4: shares[4]}) == b"k" * 32
    True
    """
    if len(secret) != 32 or not 1 <= threshold <= len(points) or len(set(points)) != len(points) or min(points) < 1:
        raise ValueError("a secret of 32 bytes, different points above 0, and a threshold of 1 up to their number")
    polynomial = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return {x: _value(polynomial, x).to_bytes(SHARE_BYTES, "big") for x in points}


def join(shares: Mapping[int, bytes]) -> bytes:
    """The secret behind at least ``threshold`` shares (fewer give an unrelated number, or an error)."""
    points = list(shares)
    total = 0
    for x in points:
        top = bottom = 1
        for other in points:
            if other != x:
                top = top * other % PRIME
                bottom = bottom * (other - x) % PRIME
        total += int.from_bytes(shares[x], "big") * top * pow(bottom, -1, PRIME)
    secret = total % PRIME
    if secret >= 2**256:
        raise ValueError("these shares do not belong to one secret")
    return secret.to_bytes(32, "big")


def _value(polynomial: list[int], x: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * x + coefficient) % PRIME
    return value
