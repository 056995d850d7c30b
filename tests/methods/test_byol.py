"""BYOL without an exchange."""

from __future__ import annotations

from collections.abc import Callable

from fedchoir import Result

Play = Callable[..., Result]


def test_a_random_encoder_is_byol_without_epochs(play: Play) -> None:
    result = play("byol", rounds=1, settings={"local_epochs": 0})
    assert result.bytes_up == 0
    assert 0 < result.intra_avg <= 100
