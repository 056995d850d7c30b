"""A site's privacy budget: every noisy release of its data, over all runs and servers, in one append-only file.

Each line holds what was released and the hash of the line before it, so that a changed or missing line is noticed. ε is
composed over all lines (dp-accounting's PLD accountant). The site sets the limit; no server can raise it.
"""

import hashlib
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedchoir.utils.errors import UsageError


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

    def releases(self) -> list[Release]:
        """All releases so far. Raises `UsageError` if the file was changed."""
        return [Release(**line["release"]) for line in self._lines()]

    def epsilon(self, *more: Release) -> float:
        """ε of all releases so far, and of ``more``."""
        return epsilon_of([*self.releases(), *more], self.delta)

    def spend(self, release: Release, **about: Any) -> float:
        """Record a release before it is made; returns ε after it. Raises `UsageError` if it would exceed the limit."""
        epsilon = self.epsilon(release)
        if self.limit is not None and epsilon > self.limit:
            raise UsageError(
                f"refused: this release would raise ε from {self.epsilon():.2f} to {epsilon:.2f} "
                f"at δ = {self.delta:g}, and this site's budget is {self.limit:g}"
            )
        self._append({"time": time.time(), **about, "release": asdict(release), "epsilon": epsilon})
        return epsilon

    def _append(self, line: dict[str, Any]) -> None:
        before = self._last_hash()
        text = json.dumps({**line, "previous": before}, sort_keys=True)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, (text + "\n").encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _last_hash(self) -> str:
        raw = self._raw()
        return hashlib.sha256(raw[-1].encode()).hexdigest() if raw else ""

    def _raw(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

    def _lines(self) -> list[dict[str, Any]]:
        lines, before = [], ""
        for number, text in enumerate(self._raw(), 1):
            try:
                line = json.loads(text)
                intact = line["previous"] == before and set(line["release"]) == {"noise", "rate", "steps"}
            except (json.JSONDecodeError, KeyError, TypeError):
                intact = False
            if not intact:
                raise UsageError(
                    f"{self.path}, line {number}: the privacy budget was changed or cut; restore it from a backup. "
                    "Without it the site cannot know what it has released"
                )
            lines.append(line)
            before = hashlib.sha256(text.encode()).hexdigest()
        return lines


def epsilon_of(releases: list[Release], delta: float) -> float:
    """ε at δ of several releases together."""
    import dp_accounting
    from dp_accounting import pld

    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    totals: dict[tuple[float, float], int] = {}
    for release in releases:
        totals[release.noise, release.rate] = totals.get((release.noise, release.rate), 0) + release.steps
    for (noise, rate), steps in totals.items():
        if steps:
            event = dp_accounting.PoissonSampledDpEvent(min(rate, 1.0), dp_accounting.GaussianDpEvent(noise))
            accountant.compose(event, steps)
    return float(accountant.get_epsilon(delta)) if any(totals.values()) else 0.0
