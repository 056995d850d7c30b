"""Assignments of models to clients in which no client keeps its own model."""

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedchoir.utils.rng import generator


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
    return [int(j) for j in linear_sum_assignment(priced)[1]]


def random_costs(n: int, seed: int, *labels: int | str) -> Tensor:
    """N×N costs drawn for one purpose. Their cheapest derangement sends a thing to each other place equally often."""
    return torch.rand(n, n, generator=generator(seed, "assignment", *labels), dtype=torch.float64)
