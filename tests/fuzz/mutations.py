"""Change valid inputs at random: bytes, ranges, and the values of JSON or TOML text."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

VALUES = [
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1", b"0", b"1", b"2", b"-0.0", b"9" * 20, b"9" * 400, b"9" * 5000,
    b"1e308", b"3.5e38", b"18446744073709551616", b"2147483648", b"null", b"true", b"false", b"[]", b"{}", b'""',
    b'"x"', b'"1"', b'"../../x"', b'"/etc/passwd"', b'"a\\u0000b"', b'"\\ud800"', b'"\\u202e"', b'"a\\nb"', b'[[]]',
    b"[null]", b'{"":0}', b"inf", b"nan", b"1979-05-27", b"0x10", b"''", b"[" * 200, b"{'a':" * 50, b'"' + b"y" * 3000 +
    b'"',
]  # fmt: skip
TOKENS = [*VALUES, b"\x00", b"\xff", b"\xfe\xff", b"\n", b"\r", b",", b":", b"=", b"]", b"}", b"[", b"{", b'"', b"#",
          b"\xef\xbb\xbf", b"\xf0\x9f\x98\x80", b"__metadata__", b"\x1b[2J", b"-----BEGIN", b"PK\x03\x04"]  # fmt: skip
SCALAR = re.compile(rb'"(?:[^"\\\n]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null')
Mutation = Callable[[random.Random, bytearray, Sequence[bytes]], bytearray]


def mutate(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    """One of the inputs, changed in one to three places. Deep nesting is rare: it takes long to build."""
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = rng.choice(MUTATIONS)(rng, data, corpus)
    if rng.random() < 0.0005:
        data += rng.choice((b"[", b'{"a":', b"x=[")) * 20_000
    return bytes(data)


def _value(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> bytearray:
    """Another value, or no value, in the place of a string or number of JSON or TOML."""
    found = [match.span() for match in SCALAR.finditer(data)]
    if not found:
        return _token(rng, data, _)
    start, end = rng.choice(found)
    data[start:end] = rng.choice(VALUES) if rng.random() < 0.8 else data[slice(*rng.choice(found))]
    return data


def _flip(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> bytearray:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def _byte(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> bytearray:
    if data:
        data[rng.randrange(len(data))] = rng.choice((0, 1, 9, 10, 32, 34, 127, 128, 255))
    return data


def _token(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> bytearray:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.choice(TOKENS)
    return data


def _remove(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> bytearray:
    at = rng.randrange(len(data) + 1)
    del data[at : at + rng.choice((1, 2, 8, 40))]
    return data


def _repeat(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> bytearray:
    at = rng.randrange(len(data) + 1)
    part = data[at : at + rng.choice((1, 8, 40))]
    data[at:at] = part * rng.choice((1, 2, 30))
    return data


def _cut(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> bytearray:
    return data[: rng.randrange(len(data) + 1)]


def _splice(rng: random.Random, data: bytearray, corpus: Sequence[bytes]) -> bytearray:
    other = rng.choice(corpus)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


MUTATIONS: Sequence[Mutation] = (_value, _value, _value, _flip, _byte, _token, _remove, _repeat, _cut, _splice)
