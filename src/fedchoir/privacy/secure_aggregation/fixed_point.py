"""Fixed-point numbers: integers modulo 2³² whose sums are sums of real numbers."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedchoir.privacy.secure_aggregation.terms import SecureAggregationError

Words = NDArray[np.uint32]
Floats = NDArray[np.floating]


@dataclass(frozen=True)
class FixedPoint:
    """Fixed-point numbers of which ``count`` can be added modulo 2³²; 0 stays exactly 0.

    >>> point = FixedPoint(count=4, clip=1024.0)
    >>> float(point.total(point.words(np.array([1.5])) + point.words(np.array([-2.5])))[0]), point.places
    (-1.0, 18)
    """

    count: int
    clip: float = 1024.0

    @property
    def places(self) -> int:
        """Fractional bits: as many as leave room for ``count`` numbers up to ``clip``."""
        return math.floor(math.log2((2**31 - 1) // self.count / self.clip))

    def words(self, values: Floats, weight: float = 1.0) -> Words:
        """Values times ``weight`` (at most 1) as integers; values beyond the clip are clipped first, non-finite ones
        refused."""
        if not np.isfinite(values).all():
            raise SecureAggregationError("only finite numbers can be summed")
        cut = np.clip(values.astype(np.float64), -self.clip, self.clip)
        return np.rint(cut * (weight * 2.0**self.places)).astype(np.int64).astype(np.uint32)

    def clipped(self, values: Floats) -> int:
        """How many values exceed the clip."""
        return int((np.abs(values) > self.clip).sum())

    def total(self, words: Words) -> NDArray[np.float64]:
        """The sum of the values whose words were added."""
        return words.view(np.int32).astype(np.float64) * 2.0**-self.places

    def mean(self, words: Words, weight: float) -> NDArray[np.float64]:
        """The weighted mean of the values whose words were added; ``weight`` is the sum of their weights.

        No mean of clipped values exceeds the clip. A larger one is refused: masks that did not cancel, or a client
        that sent other words than `words` gives.
        """
        mean = self.total(words) / weight
        rounding = self.count * 2.0**-self.places / weight
        magnitude = max(mean.max(), -mean.min()) if mean.size else 0.0
        if magnitude > self.clip + rounding:
            raise SecureAggregationError(
                f"the mean has a magnitude of {magnitude:.4g}, and every number is clipped to {self.clip:g}: a client "
                "sent masked numbers out of range, or the masks did not cancel"
            )
        return mean
