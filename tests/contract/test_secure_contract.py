"""Every method runs on secure sums to nearly the same numbers, or is refused before it starts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.test_eligibility import REQUIRES_INDIVIDUAL
from tests.helpers import events

from fedchoir import Experiment, methods, run
from fedchoir.utils.errors import UsageError


@pytest.mark.parametrize("name", methods.registry())
def test_every_method_runs_on_sums_or_is_refused(name: str, small: Callable[..., Experiment]) -> None:
    if name in REQUIRES_INDIVIDUAL:
        with pytest.raises(UsageError, match=f"secure = true is not possible with {name}: ") as error:
            run(small(name, rounds=1, secure=True))
        assert "\n" not in str(error.value)
        return
    plain, secure = small(name, "plain", rounds=2), small(name, "secure", rounds=2, secure=True)
    run(plain), run(secure)
    for one, two in zip(events(plain), events(secure), strict=True):
        assert two["left_out"] == []
        for client, losses in one["losses"].items():
            for what, value in losses.items():
                assert two["losses"][client][what] == pytest.approx(value, rel=0.02, abs=0.02), (client, what)


def test_a_client_with_non_finite_numbers_is_left_out_alone(small: Callable[..., Experiment]) -> None:
    """Four clients: a secure sum of three needs all of them."""
    settings = {"attack": "nan", "attackers": 1, "clients": 4}
    experiment = small("fedmd", rounds=1, secure=True, settings=settings)
    result = run(experiment)
    (event,) = events(experiment)
    assert {out["client"] for out in event["left_out"]} == {result.clients[-1]["name"]}
    assert "only finite numbers" in event["left_out"][0]["why"]
