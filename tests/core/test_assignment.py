"""Permutations without fixed points: against brute force, and for every number of clients."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedchoir.core.assignment import assign, derangement, random_costs

ENTRIES = st.one_of(st.floats(-1e6, 1e6), st.sampled_from([0.0, 1.0, float("inf"), float("nan"), -float("inf"), 1e30]))


@st.composite
def costs(draw: st.DrawFn, largest: int = 12) -> torch.Tensor:
    n = draw(st.integers(2, largest))
    return torch.tensor(draw(st.lists(st.lists(ENTRIES, min_size=n, max_size=n), min_size=n, max_size=n)))


def is_derangement(targets: list[int]) -> bool:
    return sorted(targets) == list(range(len(targets))) and all(i != j for i, j in enumerate(targets))


@given(costs())
@settings(max_examples=150, deadline=None)
def test_no_item_keeps_its_place_whatever_the_costs(cost: torch.Tensor) -> None:
    assert is_derangement(derangement(cost))


@given(st.integers(2, 120), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_random_costs_give_a_derangement_for_every_number_of_clients(n: int, seed: int) -> None:
    assert is_derangement(derangement(random_costs(n, seed, 0)))


@pytest.mark.parametrize("n", range(2, 41))
def test_equal_costs_give_a_derangement(n: int) -> None:
    assert is_derangement(derangement(torch.zeros(n, n)))


@given(st.integers(2, 6), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_it_is_the_cheapest_of_all_derangements(n: int, seed: int) -> None:
    cost = torch.rand(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    derangements = [p for p in itertools.permutations(range(n)) if all(i != j for i, j in enumerate(p))]
    cheapest = min(sum(cost[i, j].item() for i, j in enumerate(p)) for p in derangements)
    assert sum(cost[i, j].item() for i, j in enumerate(derangement(cost))) == pytest.approx(cheapest)


def test_a_cost_that_is_not_finite_is_avoided_where_possible() -> None:
    for bad in (float("nan"), float("inf"), float("-inf")):
        cost = torch.full((3, 3), 100.0)
        cost[0, 1] = bad
        cost[1, 2] = cost[2, 0] = 0.0
        assert derangement(cost) == [2, 0, 1]  # costs 300; the other cycle would cost 0 without its entry 0 → 1


def test_random_costs_prefer_no_pair() -> None:
    counts = torch.zeros(4, 4)
    for seed in range(1200):
        for i, j in enumerate(derangement(random_costs(4, seed, "x"))):
            counts[i, j] += 1
    off = counts[~torch.eye(4, dtype=torch.bool)]
    assert (off - 400).abs().max() < 80  # ≈ 4.9 standard deviations of a fair draw


def test_one_client_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="2 or more"):
        derangement(torch.zeros(1, 1))


@given(costs())
@settings(max_examples=100, deadline=None)
def test_the_other_rules_keep_no_item_in_its_place_whatever_the_costs(cost: torch.Tensor) -> None:
    assert is_derangement(assign(cost, "greedy"))
    assert all(i != j for i, j in enumerate(assign(cost, "argmin")))


@given(st.integers(2, 7), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_argmin_is_the_cheapest_target_of_each_item_alone(n: int, seed: int) -> None:
    cost = torch.rand(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = [min((j for j in range(n) if j != i), key=lambda j: float(cost[i, j])) for i in range(n)]
    assert assign(cost, "argmin") == expected
    totals = [sum(float(cost[i, j]) for i, j in enumerate(assign(cost, rule))) for rule in ("argmin", "assignment")]
    assert totals[0] <= totals[1] <= sum(float(cost[i, j]) for i, j in enumerate(assign(cost, "greedy"))) + 1e-12


def test_greedy_takes_the_cheapest_pair_first_and_repairs_an_item_that_has_only_its_own_place_left() -> None:
    cost = torch.tensor([[0.0, 1.0, 5.0], [2.0, 0.0, 9.0], [9.0, 9.0, 0.0]])
    # 0 → 1, then 1 → 0; 2 has only its own place left: with 0 the total is 9 + 2 + 5, with 1 it is 1 + 9 + 9
    assert assign(cost, "greedy") == [2, 0, 1]
