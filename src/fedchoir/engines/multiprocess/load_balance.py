"""Distributes clients over processes so that all processes finish at about the same time."""

from collections.abc import Sequence

from fedchoir.methods.base import Method


def distribute(costs: Sequence[float], processes: int) -> list[list[int]]:
    """The positions of each process: the most expensive first, each to the process with the smallest load.

    Every process gets one; with more processes than costs, some are left out.

    >>> distribute([150, 80, 5000, 1800], 2)
    [[2], [0, 1, 3]]
    >>> distribute([1, 1], 3)
    [[0], [1]]
    """
    shares: list[list[int]] = [[] for _ in range(min(processes, len(costs)))]
    for k in sorted(range(len(costs)), key=lambda k: (-costs[k], k)):
        min(shares, key=lambda share: (sum(costs[j] for j in share), len(share))).append(k)
    return [sorted(share) for share in shares]


def expected_costs(method: Method) -> list[float]:
    """How many samples each client processes in a round: the private ones in every epoch, and the public ones."""
    spec, params = method.spec, method.params
    public = spec.public_size * params.public_epochs if method.needs_public else 0
    return [info.train * params.epochs_of(k) + public for k, info in enumerate(spec.clients)]
