"""Text from elsewhere cannot forge a line of a log."""

from __future__ import annotations

import pytest

from fedchoir.utils.text import printable


@pytest.mark.parametrize(
    "text", ["\n", "\r", "\x1b[2J", "\x00", "\x85", "\u2028", "\u202e", "\u2066", "\ud800", "\ufeff", "\x7f", "\u200b"]
)
def test_characters_that_control_a_line_are_escaped(text: str) -> None:
    shown = printable(f"a{text}b")
    assert shown.isprintable()
    assert (shown[0], shown[-1]) == ("a", "b")
    assert "\\" in shown


def test_other_text_is_kept_and_long_text_is_cut() -> None:
    assert printable("Röntgen 東京 ε = 8, resnet10@4") == "Röntgen 東京 ε = 8, resnet10@4"
    assert printable("x" * 500) == "x" * 500
    assert printable("x" * 501) == "x" * 499 + "…"
