"""The terms of a sum: who takes part and with which weight. A client compares them with its own copy and its limits.

The server sends neither: a client computes both from its own copy of the method and of the federation, and applies its
weight itself, under the mask. Participants with other terms derive other masks, which do not cancel.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

MIN_CLIENTS = 3  # from a sum of two, each participant knows the other's summand
Weights = dict[str, dict[int, float]]
"""By payload name (the empty name stands for all), then by participant; the largest is 1."""


class SecureAggregationError(ValueError):
    """The sum cannot be computed, or must be refused."""


def threshold_of(count: int) -> int:
    """The smallest integer above 2/3 of the clients: so many must agree on who is in a sum.

    Two different lists that so many clients signed have more than a third of all clients in common. A server that
    obtains two lists for one sum therefore needs more than a third of the clients as accomplices.

    >>> [threshold_of(count) for count in (3, 4, 5, 6, 10)]
    [3, 3, 4, 5, 7]
    """
    return 2 * count // 3 + 1


@dataclass(frozen=True)
class SumTerms:
    """One sum, as a client's own copy of the federation describes it."""

    exchange: tuple[int, int]  # the round, and the number among the exchanges of this round
    sites: tuple[str, ...]  # the names of all clients of the federation
    weights: Mapping[str, Sequence[float]]  # of all clients, by payload name; an empty sequence: all alike
    received: str = ""  # a hash of everything that this client has received in the run

    def weights_of(self, participants: Iterable[int]) -> Weights:
        """The weights of some clients, relative to the largest."""
        chosen = sorted(participants)
        if not set(chosen) <= set(range(len(self.sites))):
            raise SecureAggregationError("refused: a participant is not a site of this federation")
        weights = {name: {k: float(by[k]) if by else 1.0 for k in chosen} for name, by in self.weights.items()}
        if not all(weight > 0 for by in weights.values() for weight in by.values()):
            raise SecureAggregationError("refused: every participant needs a weight above 0")
        return {name: {k: weight / max(by.values()) for k, weight in by.items()} for name, by in weights.items()}


@dataclass(frozen=True)
class SumLimits:
    """What a client requires of every sum: how many take part, and how much of the mean one of them may be.

    With ``max_share`` = 0.8 the others are at least a fifth of the mean, so it is not one client's payload. The limit
    holds for every participant: one that claims to have a billion samples does not become the mean.
    """

    min_sites: int = MIN_CLIENTS
    max_share: float = 0.8

    def check(self, weights: Weights, names: Mapping[int, str]) -> None:
        """Raise `SecureAggregationError` unless a sum with these weights keeps to the limits."""
        if len(names) < self.min_sites:
            raise SecureAggregationError(
                f"refused: a sum over {len(names)} sites, and this site requires {self.min_sites}"
            )
        for k, share in self.excessive(weights).items():
            raise SecureAggregationError(
                f"refused: {names[k]} would be {share:.1%} of the mean, and {self.max_share:.0%} is allowed"
            )

    def excessive(self, weights: Weights) -> dict[int, float]:
        """The participants with too large a share of the mean, and that share."""
        return {
            k: weight / sum(by.values())
            for by in weights.values()
            for k, weight in by.items()
            if weight > self.max_share * sum(by.values())
        }
