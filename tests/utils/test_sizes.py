"""Sizes as people write them."""

from __future__ import annotations

import pytest

from fedchoir.utils.sizes import parse_size, readable_bytes


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("17", 17),
        ("17 B", 17),
        ("2GB", 2 * 10**9),
        ("2 gb", 2 * 10**9),
        ("1.5 KiB", 1536),
        (" 500MB ", 500 * 10**6),
        ("1TiB", 2**40),
    ],
)
def test_sizes_are_bytes(text: str, number: int) -> None:
    assert parse_size(text) == number


@pytest.mark.parametrize("text", ["", "GB", "2 G", "-1GB", "1,5GB", "2GB and more", "1e9"])
def test_other_texts_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="a size such as 2GB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (5_000_000, "4.8 MiB"),
        (3 * 2**30, "3.0 GiB"),
        (2**42, "4096.0 GiB"),
    ],
)
def test_bytes_with_a_binary_unit(number: int, text: str) -> None:
    assert readable_bytes(number) == text
