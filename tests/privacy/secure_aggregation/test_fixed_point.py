"""Fixed-point numbers: sums of words are sums of numbers, and a mean that no clipped numbers can have is refused."""

from __future__ import annotations

import numpy as np
import pytest

from fedchoir.privacy.secure_aggregation.fixed_point import FixedPoint
from fedchoir.privacy.secure_aggregation.terms import SecureAggregationError


def test_numbers_beyond_the_clip_are_clipped_and_counted() -> None:
    point = FixedPoint(3, clip=8.0)
    values = [np.array([100.0, 1.0]), np.array([0.0, 1.0]), np.array([-9.0, 1.0])]
    assert point.clipped(values[0]) == 1
    assert point.total(point.words(values[0]) + point.words(values[1]) + point.words(values[2])).tolist() == [0, 3]
    with pytest.raises(SecureAggregationError, match="finite"):
        point.words(np.array([float("nan")]))


def test_numbers_are_clipped_before_they_are_weighted() -> None:
    """So the mean of clipped numbers keeps to the clip, whatever the weights."""
    point = FixedPoint(3, clip=8.0)
    assert point.total(point.words(np.array([100.0]), 0.25)).tolist() == [2.0]


@pytest.mark.parametrize("count", [3, 4, 5, 64, 1000])
def test_a_sum_of_clipped_numbers_does_not_overflow(count: int) -> None:
    point = FixedPoint(count)
    for value in (1024.0, -1024.0, 0.0):
        words = point.words(np.array([value])).astype(np.uint64) * count
        assert point.total(words.astype(np.uint32))[0] == value * count
        assert point.mean(words.astype(np.uint32), float(count))[0] == value
    assert 2.0**-point.places < (2e-4 if count < 100 else 2e-3)


def test_a_mean_beyond_the_clip_is_refused() -> None:
    """One client that sends 3000 where 1024 is the limit; and words that are still masked."""
    point = FixedPoint(3)
    honest = point.words(np.array([0.5])) + point.words(np.array([0.25]))
    crafted = np.array([round(3000 * 2**point.places)], dtype=np.int64).astype(np.uint32)
    assert point.mean(honest + point.words(np.array([3000.0])), 3.0)[0] == pytest.approx(341.583, abs=1e-3)
    with pytest.raises(SecureAggregationError, match="magnitude of 1500, and every number is clipped to 1024"):
        point.mean(crafted, 2.0)
    noise = np.random.default_rng(0).integers(0, 2**32, 100, dtype=np.uint32)
    for count in range(3, 20):
        with pytest.raises(SecureAggregationError, match="the masks did not cancel"):
            FixedPoint(count).mean(noise, count / 2)
