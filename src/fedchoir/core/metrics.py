"""Metrics of predicted probabilities, by scikit-learn where it has them.

Averages over classes count the classes that occur in the test set: a class without a sample has no recall, F1, AUROC or
average precision. A metric that is not defined (the AUROC of a test set with one class) is None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

MetricName = Literal[
    "accuracy", "balanced_accuracy", "macro_f1", "auroc", "average_precision", "brier", "ece", "log_loss"
]  # fmt: skip
Floats = NDArray[np.float64]

ECE_BINS = 15


@dataclass(frozen=True)
class Predictions:
    """A model's predictions on one test set.

    Attributes:
        probabilities: N×C, float64; rows sum to 1.
        labels: N, int64.
        hits: N, whether the label is among the top-k classes (k is the scenario's, 1 in most).
    """

    probabilities: Floats
    labels: NDArray[np.int64]
    hits: NDArray[np.bool_]

    @cached_property
    def predicted(self) -> NDArray[np.int64]:
        """The most probable class of each sample."""
        return self.probabilities.argmax(axis=1)

    @cached_property
    def confidence(self) -> Floats:
        """The probability of the most probable class."""
        largest: Floats = self.probabilities.max(axis=1)
        return largest

    @cached_property
    def present(self) -> list[int]:
        """The classes that occur."""
        return [int(label) for label in np.unique(self.labels)]

    @cached_property
    def recall_and_f1(self) -> tuple[Floats, Floats]:
        """Recall and F1 of the classes that occur."""
        from sklearn.metrics import precision_recall_fscore_support

        _, recall, f1, _ = precision_recall_fscore_support(
            self.labels, self.predicted, labels=self.present, zero_division=0
        )
        return recall, f1


def accuracy(p: Predictions) -> float:
    """Share of the samples whose label is among the top-k classes."""
    return float(p.hits.mean())


def balanced_accuracy(p: Predictions) -> float:
    """Mean recall of the classes."""
    return float(p.recall_and_f1[0].mean())


def macro_f1(p: Predictions) -> float:
    """Mean F1 of the classes."""
    return float(p.recall_and_f1[1].mean())


def auroc(p: Predictions) -> float | None:
    """Mean area under the ROC curve, each class against all others. With two classes both have the same area."""
    from sklearn.metrics import roc_auc_score

    return _one_against_rest(p, roc_auc_score)


def average_precision(p: Predictions) -> float | None:
    """Mean average precision, each class against all others."""
    from sklearn.metrics import average_precision_score

    return _one_against_rest(p, average_precision_score)


def _one_against_rest(p: Predictions, score: Callable[..., float]) -> float | None:
    if len(p.present) < 2:
        return None
    return float(score(p.labels[:, None] == p.present, p.probabilities[:, p.present], average="macro"))


def brier(p: Predictions) -> float:
    """Brier score: the squared distance between probabilities and the one-hot label, halved where there are two
    classes, as usual."""
    from sklearn.metrics import brier_score_loss

    classes = p.probabilities.shape[1]
    if classes == 2:
        return float(brier_score_loss(p.labels == 1, p.probabilities[:, 1], labels=[False, True]))
    return float(brier_score_loss(p.labels, p.probabilities, labels=np.arange(classes)))


def log_loss(p: Predictions) -> float:
    """Mean negative log probability of the label. A probability of 0 counts as 2.2e-16."""
    from sklearn import metrics

    return float(metrics.log_loss(p.labels, p.probabilities, labels=np.arange(p.probabilities.shape[1])))


def ece(p: Predictions) -> float:
    """Expected calibration error (Guo et al., ICML 2017): |mean confidence − accuracy| in 15 bins of equal width,
    weighted by the number of samples. It counts the most probable class, also under top-k accuracy."""
    gaps = np.bincount(confidence_bins(p), weights=(p.predicted == p.labels) - p.confidence)
    return float(np.abs(gaps).sum() / len(p.labels))


def confidence_bins(p: Predictions) -> NDArray[np.int64]:
    """The bin of each sample: (0, 1/15], (1/15, 2/15], …"""
    return np.clip(np.ceil(p.confidence * ECE_BINS).astype(np.int64) - 1, 0, ECE_BINS - 1)


@dataclass(frozen=True)
class Metric:
    """What tables need to know of a metric."""

    title: str
    compute: Callable[[Predictions], float | None]
    larger_is_better: bool = True
    percent: bool = True
    largest: float = 100.0
    """The largest possible value; the smallest one is 0."""

    def __call__(self, p: Predictions) -> float | None:
        """The metric of some predictions, in its unit."""
        value = self.compute(p)
        return value if value is None else value * self.scale

    @property
    def scale(self) -> float:
        return 100.0 if self.percent else 1.0

    @property
    def heading(self) -> str:
        """The title with its unit."""
        return f"{self.title} %" if self.percent else self.title

    def better(self, value: float, than: float) -> bool:
        return value > than if self.larger_is_better else value < than

    def text(self, value: float) -> str:
        """A value with few decimals and its unit, for a line of progress."""
        return f"{value:.1f} %" if self.percent else f"{value:.3f}"

    @property
    def digits(self) -> int:
        """How many decimals tables show."""
        return 2 if self.percent else 3


METRICS: dict[str, Metric] = {
    "accuracy": Metric("accuracy", accuracy),
    "balanced_accuracy": Metric("balanced accuracy", balanced_accuracy),
    "macro_f1": Metric("macro-F1", macro_f1),
    "auroc": Metric("AUROC", auroc),
    "average_precision": Metric("average precision", average_precision),
    "brier": Metric("Brier score", brier, larger_is_better=False, percent=False, largest=2.0),
    "ece": Metric("calibration error (ECE)", ece, larger_is_better=False),
    "log_loss": Metric("log loss", log_loss, larger_is_better=False, percent=False, largest=40.0),
}


def defined_mean(values: Sequence[float | None]) -> float | None:
    """The mean of the values that are defined; None where none is.

    >>> defined_mean([1.0, None, 3.0]), defined_mean([None])
    (2.0, None)
    """
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found else None
