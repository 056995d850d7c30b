"""FINCH against its adjacency equation, written out."""

import numpy as np
import pytest
import torch

from fedchoir.core.finch import cluster_means, finch, first_neighbor_clusters


def by_equation(x: np.ndarray) -> set[frozenset[int]]:
    """Connected components of A(m, n) = 1 if n = v_m or m = v_n or v_m = v_n."""
    count = len(x)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    nearest = []
    for m in range(count):
        nearest.append(max((n for n in range(count) if n != m), key=lambda n: unit[m] @ unit[n]))
    linked = lambda m, n: n == nearest[m] or m == nearest[n] or nearest[m] == nearest[n]  # noqa: E731
    groups = [{m} for m in range(count)]
    for m in range(count):
        for n in range(count):
            if linked(m, n):
                one, two = (next(g for g in groups if k in g) for k in (m, n))
                if one is not two:
                    groups.remove(two)
                    one |= two
    return {frozenset(g) for g in groups}


def as_sets(clusters: torch.Tensor) -> set[frozenset[int]]:
    return {frozenset((clusters == j).nonzero().flatten().tolist()) for j in clusters.unique()}


@pytest.mark.parametrize("count", [2, 3, 5, 12, 40])
def test_the_first_partition_is_that_of_the_equation(count: int) -> None:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    clusters = first_neighbor_clusters(x)
    assert as_sets(clusters) == by_equation(x.numpy())
    assert min(len(group) for group in as_sets(clusters)) >= 2
    assert clusters.unique().tolist() == list(range(int(clusters.max()) + 1))


def test_one_row_is_one_cluster_and_none_is_none() -> None:
    assert finch(torch.ones(1, 3)).tolist() == [0]
    assert finch(torch.zeros(0, 3)).tolist() == []
    assert finch(torch.ones(1, 3), coarsest=True).tolist() == [0]


def test_the_coarsest_partition_joins_whole_clusters_and_leaves_at_least_two() -> None:
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
    fine, coarse = finch(x), finch(x, coarsest=True)
    assert 2 <= coarse.max() + 1 < fine.max() + 1
    assert all(len(coarse[fine == j].unique()) == 1 for j in fine.unique())


def test_rows_that_belong_together_are_found() -> None:
    near = 0.01 * torch.randn(9, 3, generator=torch.Generator().manual_seed(2))
    x = torch.eye(3).repeat_interleave(3, dim=0) + near  # three neighbours are always connected
    clusters = finch(x)
    assert as_sets(clusters) == {frozenset(range(k, k + 3)) for k in (0, 3, 6)}
    torch.testing.assert_close(cluster_means(x, clusters), x.view(3, 3, 3).mean(dim=1))
