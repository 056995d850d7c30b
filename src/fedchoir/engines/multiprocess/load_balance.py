"""Which client lives in which process: shared out so that all processes finish together."""

from __future__ import annotations

from collections.abc import Sequence

from fedchoir.core.federation_spec import FederationSpec
from fedchoir.methods.base import Method


def share_out(costs: Sequence[float], processes: int) -> list[list[int]]:
    """Positions by process, in order: the dearest first, each to the process with the least to do.

    No process goes without; with more processes than costs, some are left out.

    >>> share_out([150, 80, 5000, 1800], 2)
    [[2], [0, 1, 3]]
    >>> share_out([1, 1], 3)
    [[0], [1]]
    """
    shares: list[list[int]] = [[] for _ in range(min(processes, len(costs)))]
    loads = [(0.0, 0) for _ in shares]  # and how many, for those that cost nothing
    for k in sorted(range(len(costs)), key=lambda k: (-costs[k], k)):
        least = loads.index(min(loads))
        shares[least].append(k)
        loads[least] = (loads[least][0] + costs[k], loads[least][1] + 1)
    return [sorted(share) for share in shares]


def expected_costs(method: Method) -> list[float]:
    """How many images each client looks at in a round: its private ones in every epoch, and the public ones."""
    task: FederationSpec = method.task
    params = method.params
    public = task.public_size * params.public_epochs if method.needs_public else 0
    return [card.train * params.epochs_of(k) + public for k, card in enumerate(task.clients)]
