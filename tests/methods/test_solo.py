"""SOLO: epochs per round."""

from __future__ import annotations

import pytest
from tests.methods.plain_models import PLAIN, Make


@pytest.mark.parametrize(("epochs", "rounds"), [(50, 40), (7, 3), (2, 5), (12, 4)])
def test_solo_spreads_its_epochs_evenly_over_the_rounds(epochs: int, rounds: int, harness: Make) -> None:
    s = harness("solo", PLAIN, rounds=rounds, epochs=epochs)
    client = s.clients[0]
    shares = []
    for index in range(rounds):
        client.begin(index)
        shares.append(s.method.epochs_in(client))
    assert sum(shares) == epochs
    assert max(shares) - min(shares) <= 1


def test_solo_trains_as_others_do_by_default_and_sends_nothing(harness: Make) -> None:
    s = harness("solo", PLAIN, local_epochs="3,1,2")
    assert [s.method.epochs_in(c) for c in s.clients] == [3, 1, 2]
    (event,) = s.run_rounds()
    assert event["bytes_up"] == event["bytes_down"] == 0
