"""The terms of a sum: weights come from the client's own copy, and no client is most of the mean."""

from __future__ import annotations

import pytest

from fedchoir.privacy.secure_aggregation.terms import SecureAggregationError, SumLimits, SumTerms, threshold_of

NAMES = {0: "a", 1: "b", 2: "c", 3: "d"}


def terms(*sizes: float) -> SumTerms:
    return SumTerms((0, 0), ("a", "b", "c", "d"), {"": sizes})


def test_weights_are_relative_to_the_largest_participant() -> None:
    assert terms(100, 50, 25, 400).weights_of([0, 1, 2]) == {"": {0: 1.0, 1: 0.5, 2: 0.25}}
    assert terms().weights_of([3, 1, 0]) == {"": {0: 1.0, 1: 1.0, 3: 1.0}}
    by_name = SumTerms((0, 0), ("a", "b", "c"), {"weights": (2, 1, 1), "loss": ()})
    assert by_name.weights_of(range(3))["weights"] == {0: 1.0, 1: 0.5, 2: 0.5}


def test_a_participant_needs_a_weight_and_a_place_in_the_federation() -> None:
    with pytest.raises(SecureAggregationError, match="a weight above 0"):
        terms(1, 1, 0, 1).weights_of(range(4))
    with pytest.raises(SecureAggregationError, match="not a site of this federation"):
        terms(1, 1, 1, 1).weights_of([0, 1, 7])


def test_the_weights_of_the_review_are_refused() -> None:
    """Weight 1 for one site and 1e-12 for the others: the mean is that site's payload to 1e-6."""
    weights = terms(1, 1e-12, 1e-12, 1e-12).weights_of(range(4))
    with pytest.raises(SecureAggregationError, match=r"a would be 100\.0% of the mean, and 80% is allowed"):
        SumLimits().check(weights, NAMES)


def test_a_site_that_claims_a_billion_samples_does_not_become_the_mean() -> None:
    weights = terms(100, 120, 90, 10**9).weights_of(range(4))
    assert list(SumLimits().excessive(weights)) == [3]
    with pytest.raises(SecureAggregationError, match=r"d would be 100\.0% of the mean"):
        SumLimits().check(weights, NAMES)


def test_limits_are_the_sites_own() -> None:
    weights = terms(9, 1, 1, 1).weights_of(range(4))
    SumLimits(max_share=0.75).check(weights, NAMES)
    with pytest.raises(SecureAggregationError, match=r"a would be 75\.0% of the mean, and 70% is allowed"):
        SumLimits(max_share=0.7).check(weights, NAMES)
    with pytest.raises(SecureAggregationError, match="a sum over 4 sites, and this site requires 5"):
        SumLimits(min_sites=5).check(weights, NAMES)


@pytest.mark.parametrize("count", range(3, 60))
def test_two_lists_that_enough_clients_signed_share_more_than_a_third_of_them(count: int) -> None:
    threshold = threshold_of(count)
    assert 3 * threshold > 2 * count >= 3 * (threshold - 1)
    smallest_overlap = 2 * threshold - count
    assert 3 * smallest_overlap > count
