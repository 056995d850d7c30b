from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tests.fake_results import fake_result

from fedchoir.reporting.differences import (
    MOST_SEEDS,
    Difference,
    Scores,
    difference,
    mean_interval,
    sample_half_width,
    scores,
    seeds_needed,
)
from fedchoir.reporting.run_groups import rows

Values = st.lists(st.floats(-50, 50).map(lambda v: round(v, 3)), min_size=2, max_size=8)


def of(values: list[float], metric: str = "accuracy", half_width: float | None = None) -> Scores:
    return Scores(metric, dict(enumerate(values)), half_width)


def compared(own: Scores, reference: Scores) -> Difference:
    found = difference(own, reference)
    assert found is not None
    return found


def test_the_interval_is_that_of_scipys_paired_t_test() -> None:
    ours, theirs = [50.0, 52.5, 49.0, 55.0], [45.0, 50.0, 46.5, 47.0]
    found = compared(of(ours), of(theirs))
    expected = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert found.interval == pytest.approx((expected.low, expected.high))
    assert found.mean == pytest.approx(np.mean(np.subtract(ours, theirs)))
    assert found.verdict == "better"
    assert (found.seeds, found.seeds_needed) == (4, "")


def test_by_hand_with_three_seeds() -> None:
    """Student's t at 97.5 % with two degrees of freedom is 4.3027."""
    apart = [1.0, 2.0, 3.5]
    half = 4.302652729911275 * stdev(apart) / 3**0.5
    assert mean_interval(apart) == pytest.approx((mean(apart) - half, mean(apart) + half))
    found = compared(of([11.0, 22.0, 33.5]), of([10.0, 20.0, 30.0]))
    assert found.interval == pytest.approx((mean(apart) - half, mean(apart) + half))
    assert found.verdict == "cannot be told"
    assert found.needed == 4  # 3.182·1.258/√4 = 2.002 < 2.167


@given(Values, Values)
def test_a_difference_is_marked_only_where_the_p_value_is_below_5_percent(a: list[float], b: list[float]) -> None:
    size = min(len(a), len(b))
    a, b = a[:size], b[:size]
    apart = np.subtract(a, b)
    if np.ptp(apart) < 1e-3:
        return
    found, opposite = compared(of(a), of(b)), compared(of(b), of(a))
    p = stats.ttest_rel(a, b).pvalue
    if abs(p - 0.05) > 1e-6:
        assert (found.verdict == "cannot be told") == (p > 0.05)
    assert found.mean == pytest.approx(-opposite.mean)
    assert {"better": "worse", "worse": "better"}.get(found.verdict, found.verdict) == opposite.verdict
    assert found.needed == opposite.needed
    assert found.needed is None or found.needed > size  # these seeds were not enough


@given(st.floats(0.01, 50), st.floats(0.01, 50))
def test_so_many_seeds_are_enough_and_one_less_is_not(centre: float, sd: float) -> None:
    def half(n: int) -> float:
        return float(stats.t.ppf(0.975, n - 1)) * sd / float(np.sqrt(n))

    needed = seeds_needed(centre, sd)
    if needed is None:
        assert half(MOST_SEEDS) >= centre
    else:
        assert half(needed) < centre
        assert needed == 2 or half(needed - 1) >= centre


@given(st.floats(0.01, 50), st.floats(0.01, 50))
def test_the_seeds_needed_decide_in_half_of_all_experiments_or_more(centre: float, sd: float) -> None:
    """By the noncentral t-distribution; from ten seeds on in less than 60 %, as the documentation states."""
    n = seeds_needed(centre, sd)
    if n is None:
        return
    power = stats.nct.sf(stats.t.ppf(0.975, n - 1), n - 1, centre * n**0.5 / sd)
    if np.isnan(power):  # SciPy cannot compute it for very large differences
        assert centre > 10 * sd
        return
    assert power > 0.5
    assert n < 10 or power < 0.6


def test_no_difference_is_never_decided() -> None:
    found = compared(of([50.0, 51.0]), of([51.0, 50.0]))
    assert (found.mean, found.needed, found.seeds_needed) == (0, None, "more than 100")
    assert compared(of([50.0, 51.0]), of([50.0, 51.0])).verdict == "cannot be told"


def test_a_smaller_loss_is_better() -> None:
    lower, higher = of([0.5, 0.51, 0.52], "log_loss"), of([0.9, 0.92, 0.91], "log_loss")
    assert compared(lower, higher).verdict == "better"
    assert compared(higher, lower).verdict == "worse"


def test_one_seed_has_no_interval_and_no_common_seed_no_difference() -> None:
    found = compared(of([50.0]), of([40.0, 41.0]))
    assert (found.mean, found.interval, found.verdict, found.seeds_needed) == (10, None, "one seed: no interval", "")
    assert difference(Scores("accuracy", {0: 1.0}, None), Scores("accuracy", {1: 1.0}, None)) is None


def test_a_seed_that_was_run_twice_counts_once() -> None:
    (row,) = rows([fake_result("fccl", seed=0, inter=40.0), fake_result("fccl", seed=0, inter=42.0)])
    assert scores(row, "inter").by_seed == {0: 41.0}


# -- test samples ------------------------------------------------------------------------------------------------------


def with_intervals(half: list[list[float | None]], **values: Any) -> Any:
    """A result on Digits whose clients have accuracy intervals of these half-widths on each test set."""
    spans = [[None if h is None else [50 - h, 50 + h] for h in row] for row in half]
    return fake_result("fccl", extras={"metrics_ci": {"accuracy": spans}, **values})


def test_half_widths_over_independent_test_sets() -> None:
    widths = np.array([[1.0, 2.0, 3.0, 4.0], [1.5, 2.5, 3.5, 4.5], [2.0, 3.0, 4.0, 5.0], [2.5, 3.5, 4.5, 5.5]])
    result = with_intervals(widths.tolist())
    assert sample_half_width(result, "accuracy", "intra") == pytest.approx(np.sqrt((np.diag(widths) ** 2).sum()) / 4)
    per_test = (widths * (1 - np.eye(4)) / 3).sum(0) / 4  # clients share a test set: half-widths are added
    assert sample_half_width(result, "accuracy", "inter") == pytest.approx(np.sqrt((per_test**2).sum()))
    assert sample_half_width(result, "auroc", "inter") is None


def test_equal_models_on_one_test_set_are_as_uncertain_as_one_of_them() -> None:
    result = fake_result("fedavg", "cifar10", extras={"metrics_ci": {"accuracy": [[[48.0, 52.0]]] * 10}})
    assert sample_half_width(result, "accuracy", "intra") == pytest.approx(2.0)
    assert sample_half_width(result, "accuracy", "inter") is None


def test_a_missing_interval_leaves_the_score_without_one() -> None:
    widths: list[list[float | None]] = [[1.0] * 4, [1.0] * 4, [1.0] * 4, [None, 1.0, 1.0, 1.0]]
    result = with_intervals(widths)
    assert sample_half_width(result, "accuracy", "intra") == pytest.approx(0.5)
    assert sample_half_width(result, "accuracy", "inter") is None


def test_the_domains_of_several_clients_come_from_the_task(tmp_path: Path) -> None:
    names = ["mnist-0", "mnist-1", "usps-0"]
    clients = [{"name": name, "model": "mlp", "train": 9, "test": 9} for name in names]
    task = {"clients": [{"name": name, "domain": name.split("-")[0]} for name in names]}
    (tmp_path / "task.json").write_text(json.dumps(task))
    widths: list[list[float | None]] = [[1.0, 9.0], [2.0, 9.0], [9.0, 4.0]]
    result = with_intervals(widths, clients=clients, tests=["mnist", "usps"], folder=str(tmp_path))
    assert sample_half_width(result, "accuracy", "intra") == pytest.approx(np.hypot((1 + 2) / 3, 4 / 3))


def test_the_width_covers_a_bootstrap_over_shared_samples() -> None:
    """Three models on two test sets, drawn with failures in common: the stated half-width is at least that of a
    bootstrap which resamples each test set once for all models."""
    draw = np.random.default_rng(0)
    hard = draw.random((2, 400))
    hits = (draw.random((3, 2, 400)) * 0.4 + 0.6 * hard < 0.6).astype(float)  # models × tests × samples

    def percentiles(resampled: np.ndarray) -> float:
        low, high = np.percentile(100 * resampled, [2.5, 97.5])
        return float(high - low) / 2

    index = draw.integers(400, size=(2000, 2, 400))
    picked = np.stack([hits[:, t][:, index[:, t]].mean(-1) for t in range(2)], axis=1)  # models × tests × resamples
    widths: list[list[float | None]] = [[percentiles(picked[k, t]) for t in range(2)] for k in range(3)]
    clients = [{"name": name, "model": "mlp", "train": 9, "test": 9} for name in ("a", "b", "c")]
    result = with_intervals(widths, clients=clients, tests=["only", "other"], inter=[])
    together = percentiles(picked.mean((0, 1)))
    stated = sample_half_width(result, "accuracy", "intra")
    assert stated is not None
    assert together <= stated < 1.5 * together


def test_the_interval_over_test_samples_is_around_the_difference() -> None:
    found = compared(of([50.0, 52.0], half_width=3.0), of([45.0, 45.0], half_width=4.0))
    assert found.samples == pytest.approx((6 - 5, 6 + 5))
    assert compared(of([50.0], half_width=3.0), of([45.0])).samples is None
