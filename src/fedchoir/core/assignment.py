"""Assignments of models to clients in which no client keeps its own model."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedchoir.utils.rng import generator

Rule = Literal["argmin", "greedy", "assignment"]
"""``argmin``: every item takes its cheapest target; a target may have several items or none. ``greedy``: the
cheapest pair first, each target once. ``assignment``: each target once, at the smallest total cost (`derangement`)."""


def assign(cost: Tensor, rule: Rule) -> list[int]:
    """The target of each item by a rule; arguments as in `derangement`.

    >>> cost = torch.tensor([[0.0, 1.0, 5.0, 6.0], [2.0, 0.0, 9.0, 9.0], [9.0, 1.0, 0.0, 9.0], [9.0, 1.0, 9.0, 0.0]])
    >>> assign(cost, "argmin"), assign(cost, "greedy"), assign(cost, "assignment")
    ([1, 0, 1, 1], [1, 0, 3, 2], [2, 0, 3, 1])
    """
    if rule == "assignment":
        return derangement(cost)
    priced = _priced(cost)
    return [int(j) for j in priced.argmin(axis=1)] if rule == "argmin" else _greedy(priced)


def _greedy(priced: np.ndarray) -> list[int]:
    n = len(priced)
    targets: dict[int, int] = {}
    for flat in np.argsort(priced, axis=None, kind="stable"):
        i, j = divmod(int(flat), n)
        if i != j and i not in targets and j not in targets.values():
            targets[i] = j
    if left := set(range(n)) - targets.keys():  # one item, and its own place: it changes places with another item
        (i,) = left
        k = min(targets, key=lambda k: priced[i, targets[k]] + priced[k, i] - priced[k, targets[k]])
        targets[i], targets[k] = targets[k], i
    return [targets[i] for i in range(n)]


def derangement(cost: Tensor) -> list[int]:
    """The cheapest permutation of N items without fixed points.

    Args:
        cost: N×N with N ≥ 2; entry ij is the cost of assigning i to j. The diagonal is ignored. A non-finite entry
            counts as more expensive than every finite one.

    Returns:
        The target of each item.

    >>> derangement(torch.tensor([[0.0, 5.0, 1.0], [1.0, 0.0, 5.0], [5.0, 1.0, 0.0]]))
    [2, 0, 1]
    """
    from scipy.optimize import linear_sum_assignment  # slow to import

    return [int(j) for j in linear_sum_assignment(_priced(cost))[1]]


def _priced(cost: Tensor) -> np.ndarray:
    """The costs as float64 with a finite price for what is not finite, and an infinite one on the diagonal."""
    n = cost.shape[0]
    if cost.shape != (n, n) or n < 2:
        raise ValueError(f"costs have shape {tuple(cost.shape)}; wanted N×N with N of 2 or more")
    priced = cost.detach().double().cpu().numpy().copy()
    bad = ~np.isfinite(priced)
    if bad.any():
        finite = priced[~bad]
        low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
        priced[bad] = high + n * (high - low + 1)  # one of them costs more than any n finite ones could save
    np.fill_diagonal(priced, np.inf)
    return priced


def random_costs(n: int, seed: int, *labels: int | str) -> Tensor:
    """N×N costs drawn for one purpose. Their cheapest derangement sends a thing to each other place equally often."""
    return torch.rand(n, n, generator=generator(seed, "assignment", *labels), dtype=torch.float64)
