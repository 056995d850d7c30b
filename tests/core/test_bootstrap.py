"""Bootstrap intervals: the weighted metrics are those of the repeated samples, and intervals cover as often as 95 %."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from tests.core.test_metrics import predictions, random_predictions

from fedchoir.core.bootstrap import DRAWS, RESAMPLES, intervals, resamples, weighted_metrics
from fedchoir.core.metrics import METRICS, Predictions


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("classes", "decimals"), [(2, None), (2, 0), (5, None), (5, 0), (9, 1)])
def test_weights_are_repetitions(classes: int, decimals: int | None) -> None:
    """scikit-learn on the samples, each repeated as often as its weight, some of them never."""
    p = random_predictions(60, classes, seed=classes, decimals=decimals)
    weights = next(resamples(60, draw()))[:25]
    found = weighted_metrics(p, weights)
    assert found.keys() == METRICS.keys()
    for r, row in enumerate(weights):
        index = np.repeat(np.arange(60), row.astype(int))
        repeated = Predictions(p.probabilities[index], p.labels[index], p.hits[index])
        for name, metric in METRICS.items():
            assert found[name][r] * metric.scale == pytest.approx(metric(repeated)), name


def test_resamples_draw_as_many_samples_as_there_are() -> None:
    (weights,) = resamples(50, draw())
    assert weights.shape == (RESAMPLES[1], 50)
    assert (weights.sum(1) == 50).all()
    assert weights.var() == pytest.approx(1 - 1 / 50, rel=0.05)  # the variance of a multinomial count
    assert sum(len(chunk) for chunk in resamples(10_000, draw())) == RESAMPLES[0]
    assert sum(len(chunk) for chunk in resamples(400, draw())) == DRAWS // 400


def test_intervals_are_derived_from_the_generator() -> None:
    p = random_predictions(80, 3, seed=2)
    assert intervals(p, draw(1)) == intervals(p, draw(1)) != intervals(p, draw(2))
    for name, metric in METRICS.items():
        low, high = intervals(p, draw())[name] or (0.0, 0.0)
        assert 0 <= low < high <= metric.largest, name
        if name != "ece":  # a resample repeats samples, so its calibration error is larger
            assert low <= (metric(p) or 0.0) <= high, name


def test_ends_of_intervals_are_no_subnormal_numbers() -> None:
    """A model that is always right and nearly certain has a squared distance of 1e-320, which pandas cannot read."""
    low, high = intervals(predictions([[1.0, 1e-160], [1e-160, 1.0]] * 20, [0, 1] * 20), draw())["brier"] or (1.0, 1.0)
    assert (low, high) == (0.0, 0.0)


def test_no_interval_where_the_metric_is_not_defined() -> None:
    one_class = intervals(predictions([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], [0, 0, 0]), draw())
    assert one_class["auroc"] is None
    assert one_class["average_precision"] is None
    assert one_class["accuracy"] == (0.0, 100.0)


def test_a_class_with_one_sample_leaves_out_resamples_without_it() -> None:
    found = intervals(predictions([[0.9, 0.1]] * 5 + [[0.2, 0.8]], [0] * 5 + [1]), draw())
    assert found["auroc"] == (100.0, 100.0)


def test_coverage() -> None:
    """Of test sets drawn from one distribution, 95 % have an interval that contains the value of the distribution. The
    calibration error is left out: small test sets overestimate it."""
    names = [name for name in METRICS if name != "ece"]
    large = random_predictions(200_000, 3, seed=99)
    truth = {name: METRICS[name](large) for name in names}
    covered = dict.fromkeys(names, 0)
    for k in range(250):
        found = intervals(random_predictions(250, 3, seed=1000 + k), draw(k))
        for name in names:
            low, high = found[name] or (0.0, 0.0)
            covered[name] += low <= (truth[name] or 0.0) <= high
    for name, count in covered.items():
        assert binomtest(count, 250, 0.95).pvalue > 1e-3, f"{name}: {count} of 250"


def test_large_test_sets_take_less_than_seconds() -> None:
    p = random_predictions(10_000, 10, seed=4)
    start = time.perf_counter()
    intervals(p, draw())
    assert time.perf_counter() - start < 5
