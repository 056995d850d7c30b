"""Which exchanges can run as secure aggregation, and with which weights."""

from __future__ import annotations

from typing import Any

import pytest

from fedchoir import methods
from fedchoir.core.aggregation import by_name, gather, mean, weighted_mean
from fedchoir.core.eligibility import check_secure, mean_weights
from fedchoir.utils.errors import UsageError

REQUIRES_INDIVIDUAL = {"fedct", "fedexg", "fedfoa", "fedmatch", "pgct", "rhfl"}
REQUIRES_INDIVIDUAL |= {"heterofl", "fedrolex"}  # payloads of different widths
REQUIRES_INDIVIDUAL |= {"fedgh", "fedtgp", "fpl"}  # their servers train on prototypes, or cluster them
REQUIRES_INDIVIDUAL |= {"fedet", "fedkd", "fedpft"}  # who disagrees, factors of updates, samples of mixtures
REQUIRES_INDIVIDUAL |= {"choir", "feddm"}  # synthetic samples


def test_only_means_can_be_computed_from_a_sum() -> None:
    assert mean_weights(mean()) == {"": ()}
    assert mean_weights(weighted_mean([1, 2])()) == {"": [1, 2]}
    assert mean_weights(by_name(a=mean, b=weighted_mean([1, 2]))()) == {"a": (), "b": [1, 2]}
    assert mean_weights(by_name(a=mean, b=gather)()) is None
    assert mean_weights(gather()) is None


@pytest.mark.parametrize("name", methods.registry())
def test_methods_whose_server_needs_individual_payloads_are_refused(name: str) -> None:
    method = methods.get(name)
    if name not in REQUIRES_INDIVIDUAL:
        assert method.requires_individual_payloads(method.Params()) == ""
        check_secure(method, method.Params(), 3)
        return
    with pytest.raises(UsageError, match=f"secure = true is not possible with {name}: "):
        check_secure(method, method.Params(), 3)


@pytest.mark.parametrize(
    ("options", "clients", "why"),
    [
        ({"robust": "median"}, 5, "robust = 'median' compares individual payloads; set it to 'mean'"),
        ({"fraction": 0.5}, 5, "fraction = 0.5 "),
        ({"join_late": "b:3"}, 5, "join_late = 'b:3' changes who is in the sum"),
        ({}, 2, "2 clients are too few"),
    ],
)
def test_options_that_a_sum_cannot_serve_are_refused(options: dict[str, Any], clients: int, why: str) -> None:
    method = methods.get("fedmd")
    with pytest.raises(UsageError, match=why):
        check_secure(method, method.Params(**options), clients)
