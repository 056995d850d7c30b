"""FINCH: clustering by first neighbours, without parameters, written from the paper's equation.

Sarfraz et al., Efficient Parameter-free Clustering Using First Neighbor Relations, CVPR 2019.
"""

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor


def first_neighbor_clusters(x: Tensor) -> Tensor:
    """The first partition: the cluster of each row of x (N×d), numbered from 0.

    Two rows are in one cluster if one is the other's nearest row (by cosine) or both have the same nearest row: these
    are the connected components of the graph of nearest rows.

    >>> first_neighbor_clusters(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])).tolist()
    [0, 0, 1, 1]
    """
    count = len(x)
    if count < 2:
        return torch.zeros(count, dtype=torch.int64)
    unit = F.normalize(x.detach().cpu().double(), dim=1)
    nearest = (unit @ unit.T).fill_diagonal_(-torch.inf).argmax(dim=1).numpy()
    graph = coo_array((np.ones(count), (np.arange(count), nearest)), shape=(count, count))
    return torch.from_numpy(connected_components(graph, directed=False)[1]).long()


def finch(x: Tensor, *, coarsest: bool = False) -> Tensor:
    """The clusters of the rows of x (N×d): the first partition, or the coarsest one that is not a single cluster.

    Coarser partitions join the clusters of a partition by the first neighbours of their means.

    >>> angles = torch.tensor([0.0, 0.1, 0.5, 0.6, 1.5, 1.6, 2.2, 2.3])
    >>> rows = torch.stack([angles.cos(), angles.sin()], dim=1)
    >>> finch(rows).tolist(), finch(rows, coarsest=True).tolist()
    ([0, 0, 1, 1, 2, 2, 3, 3], [0, 0, 0, 0, 1, 1, 1, 1])
    """
    clusters = first_neighbor_clusters(x)
    while coarsest:
        joined = first_neighbor_clusters(cluster_means(x, clusters))[clusters]
        if joined.max() in (0, clusters.max()):
            break
        clusters = joined
    return clusters


def cluster_means(x: Tensor, clusters: Tensor) -> Tensor:
    """The mean of each cluster's rows, J×d."""
    return torch.stack([x[clusters == j].mean(dim=0) for j in range(int(clusters.max()) + 1)])
