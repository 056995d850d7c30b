"""Metrics against definitions written out by hand: ties, absent classes, perfect and constant predictors."""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pytest

from fedchoir.core.metrics import METRICS, Predictions, defined_mean


def predictions(probabilities: object, labels: object) -> Predictions:
    p, y = np.asarray(probabilities, dtype=np.float64), np.asarray(labels, dtype=np.int64)
    return Predictions(p, y, p.argmax(1) == y)


def random_predictions(samples: int, classes: int, seed: int, *, decimals: int | None = None) -> Predictions:
    """Softmax outputs that are somewhat right; rounded scores have ties."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=samples)
    z = rng.normal(size=(samples, classes)) + 1.5 * np.eye(classes)[labels]
    z = z if decimals is None else z.round(decimals)
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    return predictions(p, labels)


def by_hand(p: Predictions) -> dict[str, float]:
    """Every metric from its definition, with loops."""
    n, classes = p.probabilities.shape
    best = [int(np.argmax(row)) for row in p.probabilities]
    recalls, f1s, areas, precisions = [], [], [], []
    for c in sorted(set(p.labels.tolist())):
        hit = sum(b == y == c for b, y in zip(best, p.labels, strict=True))
        support, guessed = sum(p.labels == c), best.count(c)
        recalls.append(hit / support)
        f1s.append(2 * hit / (support + guessed))
        scores = p.probabilities[:, c]
        inside, outside = scores[p.labels == c], scores[p.labels != c]
        wins = [1.0 if a > b else 0.5 if a == b else 0.0 for a, b in itertools.product(inside, outside)]
        areas.append(np.mean(wins))  # the probability that a sample of the class ranks above another one
        precisions.append(sum(np.mean(p.labels[scores >= s] == c) for s in inside) / support)
    one_hot = np.eye(classes)[p.labels]
    squares = ((p.probabilities - one_hot) ** 2).sum(1).mean()
    error = 0.0
    for k in range(15):
        inside_bin = [i for i in range(n) if k / 15 < p.probabilities[i].max() <= (k + 1) / 15]
        if inside_bin:
            confidence = np.mean([p.probabilities[i].max() for i in inside_bin])
            right = np.mean([best[i] == p.labels[i] for i in inside_bin])
            error += len(inside_bin) / n * abs(confidence - right)
    return {
        "accuracy": 100 * float(np.mean(np.array(best) == p.labels)),
        "balanced_accuracy": 100 * float(np.mean(recalls)),
        "macro_f1": 100 * float(np.mean(f1s)),
        "auroc": 100 * float(np.mean(areas)),
        "average_precision": 100 * float(np.mean(precisions)),
        "brier": float(squares / 2 if classes == 2 else squares),
        "ece": 100 * float(error),
        "log_loss": float(np.mean([-math.log(p.probabilities[i, y]) for i, y in enumerate(p.labels)])),
    }


@pytest.mark.parametrize("decimals", [None, 0])
@pytest.mark.parametrize("classes", [2, 3, 7])
def test_against_definitions_written_out(classes: int, decimals: int | None) -> None:
    p = random_predictions(80, classes, seed=classes, decimals=decimals)
    assert {name: metric(p) for name, metric in METRICS.items()} == pytest.approx(by_hand(p))


def test_classes_that_the_test_set_lacks_do_not_count() -> None:
    """A model of five classes on a test set with two: the other classes have neither recall nor AUROC."""
    p = random_predictions(300, 5, seed=1)
    some = np.isin(p.labels, [1, 3])
    few = predictions(p.probabilities[some], p.labels[some])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert {name: metric(few) for name, metric in METRICS.items()} == pytest.approx(by_hand(few))


def test_a_test_set_of_one_class_has_no_auroc() -> None:
    p = predictions([[0.7, 0.3], [0.4, 0.6]], [0, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = {name: metric(p) for name, metric in METRICS.items()}
    assert found["auroc"] is None
    assert found["average_precision"] is None
    assert found["accuracy"] == found["balanced_accuracy"] == 50.0


def test_a_perfect_and_a_constant_predictor() -> None:
    labels = [0, 1, 2, 2, 1, 2]
    perfect = {name: metric(predictions(np.eye(3)[labels], labels)) for name, metric in METRICS.items()}
    assert perfect == pytest.approx({**dict.fromkeys(METRICS, 100.0), "brier": 0.0, "ece": 0.0, "log_loss": 0.0})
    constant = {name: metric(predictions([[0.2, 0.2, 0.6]] * 6, labels)) for name, metric in METRICS.items()}
    assert constant["accuracy"] == pytest.approx(50.0)
    assert constant["balanced_accuracy"] == pytest.approx(100 / 3)
    assert constant["auroc"] == pytest.approx(50.0)  # all samples are tied
    assert constant["average_precision"] == pytest.approx(100 * (1 + 2 + 3) / 6 / 3)  # the share of each class
    assert constant["ece"] == pytest.approx(10.0)


def test_a_wrong_certainty_has_a_finite_log_loss_within_the_bounds() -> None:
    p = predictions(np.eye(4)[[1, 2, 3, 0]], [0, 1, 2, 3])
    worst = {name: metric(p) for name, metric in METRICS.items()}
    assert all(0 <= value <= METRICS[name].largest for name, value in worst.items() if value is not None)
    assert worst["log_loss"] == pytest.approx(-math.log(np.finfo(np.float64).eps))
    assert worst["brier"] == METRICS["brier"].largest


def test_top_k_hits_count_for_accuracy_alone() -> None:
    p = random_predictions(50, 6, seed=3)
    loose = Predictions(p.probabilities, p.labels, np.ones(50, dtype=bool))
    differing = {name for name, metric in METRICS.items() if metric(p) != metric(loose)}
    assert differing == {"accuracy"}


def test_headings_and_directions() -> None:
    assert [METRICS[name].heading for name in ("auroc", "log_loss")] == ["AUROC %", "log loss"]
    assert METRICS["auroc"].better(80.0, than=70.0)
    assert METRICS["log_loss"].better(0.3, than=0.4)
    assert (METRICS["auroc"].text(81.26), METRICS["brier"].text(0.25)) == ("81.3 %", "0.250")
    assert (METRICS["auroc"].digits, METRICS["brier"].digits) == (2, 3)
    assert defined_mean([]) is None
