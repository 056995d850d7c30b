"""Differences between the rows of a table: paired by seed, with 95 % intervals and the seeds that would decide them."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from fedchoir.core.evaluation import intra_inter
from fedchoir.core.metrics import METRICS
from fedchoir.core.result import Result
from fedchoir.reporting.headline import SCOPES, score_of
from fedchoir.reporting.run_data import own_tests_of
from fedchoir.reporting.run_groups import Row

LEVEL = 0.95
MOST_SEEDS = 100
"""More seeds than these are not suggested."""
OPEN = "cannot be told"
ONE_SEED = "one seed: no interval"

Span = tuple[float, float]


@dataclass(frozen=True)
class Difference:
    """The score of a row minus that of the reference.

    Attributes:
        seeds: that both rows have.
        mean: over these seeds.
        interval: 95 % of Student's t over the seeds; None with one seed.
        samples: 95 % over test samples, see `sample_half_width`; None where the runs have no bootstrap intervals.
        needed: seeds for an interval without zero; None if it has none already, or if more than 100 were needed.
        verdict: ``better`` or ``worse`` only where the interval over seeds excludes zero.
    """

    seeds: int
    mean: float
    interval: Span | None
    samples: Span | None
    needed: int | None
    verdict: str

    @property
    def seeds_needed(self) -> str:
        """In words; empty where the question does not arise."""
        if self.verdict != OPEN:
            return ""
        return f"more than {MOST_SEEDS}" if self.needed is None else str(self.needed)


class Scores(NamedTuple):
    """What a difference needs of a row: the score of each seed, and half of the interval over test samples."""

    metric: str
    by_seed: dict[int, float]
    half_width: float | None


def scores(row: Row, scope: str) -> Scores:
    """The scores of a row; the mean where a seed was run more than once."""
    found: dict[int, list[float]] = {}
    for result in row.results:
        if (score := score_of(result, row.metric, scope)) is not None:
            found.setdefault(result.seed, []).append(score)
    widths = [sample_half_width(result, row.metric, scope) for result in row.results]
    known = [width for width in widths if width is not None]
    by_seed = {seed: mean(values) for seed, values in found.items()}
    return Scores(row.metric, by_seed, mean(known) if len(known) == len(widths) else None)


def difference(own: Scores, reference: Scores) -> Difference | None:
    """The scores of a row minus those of the reference; None where they have no seed in common.

    The interval over test samples is not paired: a result has no predictions. It is too wide where two models fail on
    the same samples. Seeds share their test samples, so more seeds do not make it narrower.
    """
    common = sorted(own.by_seed.keys() & reference.by_seed.keys())
    if not common:
        return None
    values = [own.by_seed[seed] - reference.by_seed[seed] for seed in common]
    count, centre, samples = len(values), mean(values), None
    if own.half_width is not None and reference.half_width is not None:
        half = sqrt(own.half_width**2 + reference.half_width**2)
        samples = (centre - half, centre + half)
    if count < 2:
        return Difference(count, centre, None, samples, None, ONE_SEED)
    low, high = mean_interval(values)
    if low <= 0 <= high:
        needed = seeds_needed(centre, float(np.std(values, ddof=1)))
        return Difference(count, centre, (low, high), samples, needed, OPEN)
    verdict = "better" if METRICS[own.metric].better(centre, 0) else "worse"
    return Difference(count, centre, (low, high), samples, None, verdict)


def mean_interval(values: Any) -> Span:
    """The 95 % interval of the mean (Student's t) of at least two values."""
    half = stats.t.ppf((1 + LEVEL) / 2, len(values) - 1) * stats.sem(values)
    return float(np.mean(values) - half), float(np.mean(values) + half)


def seeds_needed(centre: float, sd: float) -> int | None:
    """The smallest number of seeds with an interval of which one half is narrower than the difference, if its standard
    deviation stays ``sd``; None if more than 100 were needed.

    >>> seeds_needed(2.0, 1.0), seeds_needed(0.1, 1.0)
    (4, None)
    """
    counts = np.arange(2, MOST_SEEDS + 1)
    halves = stats.t.ppf((1 + LEVEL) / 2, counts - 1) * sd / np.sqrt(counts)
    enough: Sequence[int] = counts[halves < abs(centre)].tolist()
    return enough[0] if enough else None


def sample_half_width(result: Result, metric: str, scope: str) -> float | None:
    """Half of the 95 % interval of a run's score over its test samples, the models as trained; None where unknown.

    A result has the bootstrap interval of each client on each test set in the last round. Test sets are independent of
    each other. Scores of several clients on one test set are not: their half-widths are added, which is right for equal
    models and else too wide.
    """
    spans = result.metrics_ci.get(metric)
    if not spans:
        return None
    by_test: dict[int, float] = {}
    for cells, own in zip(spans, own_tests_of(result), strict=True):
        for test, weight in _weights(result, own, scope).items():
            if not cells or (span := cells[test]) is None:
                return None
            by_test[test] = by_test.get(test, 0.0) + weight * (span[1] - span[0]) / 2 / len(spans)
    return sqrt(sum(width**2 for width in by_test.values())) if by_test else None


def _weights(result: Result, own: int | None, scope: str) -> dict[int, float]:
    """The weight of each test set, by its number, in the score of a client with this own one."""
    numbers = range(len(result.tests))
    if scope not in SCOPES:
        return {j: 1.0 for j in numbers if result.tests[j] in result.unseen}
    found = {j: intra_inter([float(j == k) for k in numbers], own)[SCOPES.index(scope)] for j in numbers}
    return {j: weight for j, weight in found.items() if weight}
