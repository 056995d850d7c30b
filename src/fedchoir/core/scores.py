"""What a client reports about an evaluated round: its scores on each test set and on its validation share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Detail = Literal["accuracy", "metrics", "intervals"]
"""How much is computed: accuracies only; all metrics; all metrics with confidence intervals."""


@dataclass(frozen=True)
class TestScore:
    """The scores of one model on one test set. None stands for a metric that is not defined there."""

    accuracy: float  # percent
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    intervals: Mapping[str, Sequence[float] | None] = field(default_factory=dict)  # name → [low, high]

    __test__ = False  # not a test case, whatever its name


@dataclass(frozen=True)
class Validation:
    """The headline metric on a client's validation share, and its best round so far (None before the first)."""

    score: float | None
    best_round: int | None


@dataclass(frozen=True)
class Evaluation:
    """One client's evaluation: its scores on the tests, then on its own share of them where there is one."""

    tests: tuple[TestScore, ...]
    validation: Validation | None = None

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> Evaluation:
        """The inverse of `dataclasses.asdict`, also after JSON."""
        validation = facts.get("validation")
        return cls(
            tuple(TestScore(**score) for score in facts["tests"]),
            None if validation is None else Validation(**validation),
        )
