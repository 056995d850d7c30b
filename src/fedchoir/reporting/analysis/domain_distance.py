"""How far apart two domains are for a model: the proxy A-distance."""

from __future__ import annotations

import numpy as np
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler


def proxy_a_distance(a: np.ndarray, b: np.ndarray, seed: int = 0) -> float:
    """d_A = 2 (1 − 2 ε), where ε is the error of a linear classifier that tells the domains apart (Ben-David et al.,
    Analysis of Representations for Domain Adaptation, NeurIPS 2006).

    Features a (N×d) and b (M×d) are halved at random; the classifier learns on one half and is tried on the other, each
    domain counting the same. 0: a model cannot tell them apart; 2: it always can. Below 0 is noise and set to 0.

    >>> draw = np.random.default_rng(0)
    >>> same, other = draw.normal(size=(2, 200, 5)), draw.normal(size=(200, 5)) + 8
    >>> proxy_a_distance(same[0], same[1]) < 0.5, proxy_a_distance(same[0], other)
    (True, 2.0)
    """
    draw = np.random.default_rng(seed)
    halves = [np.array_split(part[draw.permutation(len(part))], 2) for part in (a, b)]
    learn, judge = (np.concatenate([half[k] for half in halves]) for k in (0, 1))
    sides = [np.repeat([0, 1], [len(halves[0][k]), len(halves[1][k])]) for k in (0, 1)]
    scaler = StandardScaler().fit(learn)
    model = LogisticRegression(C=0.1, max_iter=300, class_weight="balanced").fit(scaler.transform(learn), sides[0])
    told = model.predict(scaler.transform(judge))
    error = np.mean([np.mean(told[sides[1] == side] != side) for side in (0, 1)])
    return float(max(0.0, 2 * (1 - 2 * error)))


def rank_correlation(x: list[float], y: list[float]) -> float | None:
    """Spearman's ρ; None where it says nothing (fewer than three points, or a constant)."""
    if len(x) < 3 or len(set(x)) < 2 or len(set(y)) < 2:
        return None
    return float(spearmanr(x, y).statistic)
