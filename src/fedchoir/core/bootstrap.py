"""Confidence intervals of metrics by the percentile bootstrap over test samples.

All resamples are computed at once: a resample is a row of weights (how often each sample was drawn), and each metric is
written for a matrix of weights, R×N. Resamples in which a metric is not defined do not count.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from fedchoir.core.metrics import ECE_BINS, METRICS, Floats, Predictions, confidence_bins

LEVEL = 0.95
RESAMPLES = (200, 1000)  # the fewest and the most
DRAWS = 200_000  # resamples × samples, unless that is fewer than the fewest resamples
CHUNK = 2_000_000  # weights in memory at once

Interval = tuple[float, float]


def intervals(p: Predictions, generator: torch.Generator) -> dict[str, Interval | None]:
    """The central 95 % of each metric over resamples of the test samples; None where the metric is not defined."""
    values: dict[str, list[Floats]] = {name: [] for name in METRICS}
    for weights in resamples(len(p.labels), generator):
        for name, found in weighted_metrics(p, weights).items():
            values[name].append(found * METRICS[name].scale)
    return {name: _central(np.concatenate(found)) for name, found in values.items()}


def resamples(samples: int, generator: torch.Generator) -> Iterator[Floats]:
    """Matrices of weights, R×N: 1000 resamples of up to 200 samples, 200 of 1000 samples or more."""
    fewest, most = RESAMPLES
    left = min(most, max(fewest, DRAWS // samples))
    while left:
        rows = min(left, max(1, CHUNK // samples))
        drawn = torch.randint(samples, (rows, samples), generator=generator).numpy()
        flat = np.bincount((drawn + samples * np.arange(rows)[:, None]).ravel(), minlength=rows * samples)
        yield flat.reshape(rows, samples).astype(np.float64)
        left -= rows


def _central(values: Floats) -> Interval | None:
    if np.isnan(values).all():
        return None
    low, high = np.nanpercentile(values, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return _normal(low), _normal(high)


def _normal(value: float) -> float:
    """A number below the smallest normal one is zero: some readers of JSON, that of pandas for one, refuse it."""
    return float(value) if abs(value) >= np.finfo(np.float64).tiny else 0.0


def weighted_metrics(p: Predictions, weights: Floats) -> dict[str, Floats]:
    """Each metric of the weighted samples: R values for R×N weights, NaN where it is not defined."""
    areas, precisions = _ranking_metrics(p, weights)
    recalls, f1 = _class_metrics(p, weights)
    return {
        "accuracy": _mean(p.hits, weights),
        "balanced_accuracy": recalls,
        "macro_f1": f1,
        "auroc": areas,
        "average_precision": precisions,
        "brier": _mean(_squared_distances(p), weights),
        "ece": _calibration_error(p, weights),
        "log_loss": _mean(-np.log(np.clip(_of_labels(p), np.finfo(np.float64).eps, 1)), weights),
    }


def _mean(values: NDArray[np.generic], weights: Floats) -> Floats:
    return weights @ values.astype(np.float64) / weights.sum(axis=1)


def _of_labels(p: Predictions) -> Floats:
    """The probability of each sample's label."""
    found: Floats = p.probabilities[np.arange(len(p.labels)), p.labels]
    return found


def _squared_distances(p: Predictions) -> Floats:
    classes = p.probabilities.shape[1]
    distances: Floats = ((p.probabilities - np.eye(classes)[p.labels]) ** 2).sum(axis=1)
    return distances / 2 if classes == 2 else distances


def _calibration_error(p: Predictions, weights: Floats) -> Floats:
    gaps = (p.predicted == p.labels) - p.confidence
    per_bin = weights @ (np.eye(ECE_BINS)[confidence_bins(p)] * gaps[:, None])
    error: Floats = np.abs(per_bin).sum(axis=1) / weights.sum(axis=1)
    return error


def _class_metrics(p: Predictions, weights: Floats) -> tuple[Floats, Floats]:
    """Mean recall and mean F1 over the classes that a resample has."""
    is_label = p.labels[:, None] == np.array(p.present)
    is_predicted = p.predicted[:, None] == np.array(p.present)
    hits, support, predicted = (
        weights @ m.astype(np.float64) for m in (is_label & is_predicted, is_label, is_predicted)
    )
    absent = support == 0
    recall = np.ma.masked_array(hits / np.where(absent, 1, support), absent)
    f1 = np.ma.masked_array(2 * hits / np.maximum(support + predicted, 1), absent)
    return recall.mean(axis=1).filled(np.nan), f1.mean(axis=1).filled(np.nan)


def _ranking_metrics(p: Predictions, weights: Floats) -> tuple[Floats, Floats]:
    """Mean AUROC and mean average precision, each class of a resample against all others."""
    one_class = np.full((2, len(weights)), np.nan)
    if len(p.present) < 2:
        return one_class[0], one_class[1]
    columns = np.ascontiguousarray(weights.T)
    found = np.ma.masked_invalid([_ranking(p.labels == c, p.probabilities[:, c], columns) for c in p.present])
    areas, precisions = found.mean(axis=0).filled(np.nan)
    return areas, precisions


def _ranking(positive: NDArray[np.bool_], scores: Floats, weights: Floats) -> Floats:
    """AUROC and average precision of one class, 2×R, from weights N×R (sums over samples are faster that way); NaN
    where a resample has no positive or no negative sample.

    Both are sums over the positive samples: of the share of negatives that rank lower (half of those with an equal
    score), and of the precision at the sample's score.
    """
    order = np.argsort(-scores, kind="stable")
    ranked, places = -scores[order], np.flatnonzero(positive[order])
    above = np.searchsorted(ranked, ranked[places], side="left")  # samples that rank higher than each positive one
    through = np.searchsorted(ranked, ranked[places], side="right")  # the same, and those with an equal score
    all_drawn = weights[order]
    own = all_drawn[places]
    all_drawn, true = _sums_before(all_drawn), _sums_before(own)
    true_above, true_through = true[np.searchsorted(places, above)], true[np.searchsorted(places, through)]
    false_above, false_through = all_drawn[above] - true_above, all_drawn[through] - true_through
    positives, negatives = true[-1], all_drawn[-1] - true[-1]
    with np.errstate(invalid="ignore", divide="ignore"):
        area = 1 - (own * (false_above + false_through)).sum(axis=0) / (2 * positives * negatives)
        precision = (own * true_through / np.maximum(all_drawn[through], 1)).sum(axis=0) / positives
    return np.where((positives > 0) & (negatives > 0), np.stack([area, precision]), np.nan)


def _sums_before(rows: Floats) -> Floats:
    """Sums over the first 0, 1, …, N rows: (N+1)×R."""
    sums = np.zeros((len(rows) + 1, rows.shape[1]))
    np.cumsum(rows, axis=0, out=sums[1:])
    return sums
