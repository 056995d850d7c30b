"""Clients are distributed by cost."""

from __future__ import annotations

from collections.abc import Callable

from tests.federation_harness import FederationHarness

from fedchoir import Experiment
from fedchoir.engines.multiprocess.load_balance import distribute, expected_costs


def test_costs_are_balanced_and_no_process_is_empty() -> None:
    assert distribute([8, 7, 6, 5, 4], 2) == [[0, 3, 4], [1, 2]]
    assert distribute([0, 0, 0], 2) == [[0, 2], [1]]
    assert distribute([5], 4) == [[0]]


def test_costs_are_samples_per_round(small: Callable[..., Experiment]) -> None:
    assert expected_costs(FederationHarness(small("fccl+")).method) == [48 * 2 + 40] * 3
    assert expected_costs(FederationHarness(small("fedavg")).method) == [48 * 2] * 3
