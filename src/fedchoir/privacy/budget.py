"""A site's privacy budget: every noisy release of its data, over all runs and servers, in one append-only file.

Each line holds what was released and the hash of the line before it, so that a changed or missing line is noticed. ε is
composed over all lines (dp-accounting's PLD accountant). The site sets the limit; no server can raise it.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedchoir.privacy.dp import composed_epsilon
from fedchoir.utils.errors import UsageError
from fedchoir.utils.hash_chain import BrokenChainError, HashChain


class BudgetExceededError(UsageError):
    """A release that the budget does not allow. Unlike that of other errors, its text names no file of the site."""


@dataclass(frozen=True)
class Release:
    """Poisson-sampled Gaussian steps: the noise multiplier, the sampling rate and how many."""

    noise: float
    rate: float
    steps: int


class PrivacyBudget:
    """The releases of one data set. ``limit`` is the largest ε at ``delta`` that the site accepts; None: no limit."""

    def __init__(self, path: Path, delta: float, limit: float | None = None) -> None:
        self.path, self.delta, self.limit = path, delta, limit
        self._chain = HashChain(path)

    def releases(self) -> list[Release]:
        """All releases so far. Raises `UsageError` if the file was changed."""
        return [Release(**line["release"]) for line in self._lines()]

    def epsilon(self, *more: Release) -> float:
        """ε of all releases so far, and of ``more``."""
        return epsilon_of([*self.releases(), *more], self.delta)

    def spend(self, release: Release, **about: Any) -> float:
        """Record a release before it is made; returns ε after it. Raises `BudgetExceededError` if it would exceed the
        limit, and `UsageError` if the file was changed."""
        epsilon = self.epsilon(release)
        if self.limit is not None and epsilon > self.limit:
            raise BudgetExceededError(
                f"refused: this release would raise ε from {self.epsilon():.2f} to {epsilon:.2f} "
                f"at δ = {self.delta:g}, and this site's budget is {self.limit:g}"
            )
        self._chain.append(time=time.time(), **about, release=asdict(release), epsilon=epsilon)
        return epsilon

    def _lines(self) -> Iterator[dict[str, Any]]:
        try:
            for number, line in enumerate(self._chain, 1):
                if not _is_release(line.get("release")):
                    raise BrokenChainError(number)
                yield line
        except BrokenChainError as error:
            raise UsageError(
                f"{self.path}, line {error.line}: the privacy budget was changed or cut; restore it from a backup. "
                "Without it the site cannot know what it has released"
            ) from None


def _is_release(value: Any) -> bool:
    if not isinstance(value, dict) or set(value) != {"noise", "rate", "steps"}:
        return False
    noise, rate, steps = value["noise"], value["rate"], value["steps"]
    numbers = all(type(number) in (int, float) for number in (noise, rate)) and type(steps) is int
    return numbers and 0 <= noise < math.inf and 0 <= rate <= 1 and 0 <= steps <= 10**12


def epsilon_of(releases: list[Release], delta: float) -> float:
    """ε at δ of several releases together."""
    totals: dict[tuple[float, float], int] = {}
    for release in releases:
        totals[release.noise, release.rate] = totals.get((release.noise, release.rate), 0) + release.steps
    return composed_epsilon(tuple((noise, rate, steps) for (noise, rate), steps in totals.items()), delta)
