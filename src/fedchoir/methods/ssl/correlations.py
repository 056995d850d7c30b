"""FedFoA: a client's mean feature correlations and the mutual-understanding term."""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from fedchoir.losses import feature_correlation, understanding_gaps
from fedchoir.losses.factorization import Solver
from fedchoir.utils.rng import generator

Scale = Literal["unit", "raw", "centred"]
"""Features scaled to unit length, as they are, or without their mean over the batch and then at unit length."""
RECORDED = ("trace", "peers_passed", "understanding_gap")
"""What a round records, as means over its batches: Tr(R), the peers that pass the filter, and Σ_j ℓ_A of these."""


class Correlations(nn.Module):
    """R̄ of eq. 12: the mean of R over the batches of a round. A module of the client, so that checkpoints hold it."""

    total: Tensor
    batches: Tensor
    sums: Tensor

    def __init__(self, dim: int, scale: Scale = "unit") -> None:
        super().__init__()
        self.scale = scale
        self.register_buffer("total", torch.zeros(dim, dim))
        self.register_buffer("batches", torch.zeros(()))
        self.register_buffer("sums", torch.zeros(len(RECORDED)))

    def reset(self) -> None:
        for buffer in (self.total, self.batches, self.sums):
            buffer.zero_()

    def recorded(self) -> dict[str, Tensor]:
        """The means of a round by name, still on the device."""
        return dict(zip(RECORDED, self.sums / self.batches.clamp(min=1), strict=True))

    def mean(self) -> Tensor:
        """n×n; zeros before the first batch."""
        return self.total / self.batches.clamp(min=1)

    def term(self, z: Tensor, peers: Tensor | None, solver: Solver = "auto") -> Tensor:
        """Σ_j ℓ_A(Z, R̄_j) over the peers whose features are more independent than this batch's (eq. 7 and 13).

        Adds the batch's own R to the mean. A batch of fewer than n samples (the last of an epoch) has no R and adds 0.
        Peers without Tr(R̄_j) > Tr(R_i) have weight 0, so that nothing is read on the host.

        Args:
            z: calibrated features of a batch, m×n.
            peers: R̄ of others, J×n×n, or None during the warm-up.
        """
        if len(z) < len(self.total):
            return z.new_zeros(())
        z = scaled(z, self.scale)
        r = feature_correlation(z, solver)
        self.total += r
        self.batches += 1
        self.sums[0] += r.trace()
        if peers is None:
            return z.new_zeros(())
        better = traces(peers) > r.trace()
        gap = (better * understanding_gaps(z, peers, solver)).sum()
        self.sums[1] += better.sum()
        self.sums[2] += gap.detach()
        return gap


def scaled(z: Tensor, scale: Scale) -> Tensor:
    """The features whose correlations are compared, m×n."""
    if scale == "raw":
        return z
    return unit_columns(z - z.mean(dim=0) if scale == "centred" else z)


def unit_columns(z: Tensor) -> Tensor:
    """Scale every feature (column) of a batch to length 1, m×n, so that Tr(R) measures independence only.

    The paper uses Z as it is. Its trace also grows with the features' scale: a client with larger features passes the
    filter, the others' features grow towards its, overshoot, and so on without bound.

    >>> r = feature_correlation(unit_columns(torch.tensor([[3.0, 0.0], [4.0, 0.0], [0.0, 2.0]])))
    >>> round(float(r.trace()), 4)  # the maximum n: the features are orthogonal
    2.0
    """
    length = torch.linalg.vector_norm(z, dim=0)
    return z / length.where(length > 1e-8, 1.0)  # a zero feature stays zero


def upper(r: Tensor) -> Tensor:
    """The entries on and above the diagonal, row by row, which is all of a triangular matrix: …×n×n → …×n(n+1)/2.

    >>> upper(torch.tensor([[1.0, 2.0], [0.0, 3.0]])).tolist()
    [1.0, 2.0, 3.0]
    """
    rows, columns = torch.triu_indices(r.shape[-1], r.shape[-1], device=r.device)
    return r[..., rows, columns]


def square(entries: Tensor, n: int) -> Tensor:
    """The triangular matrix of its entries: …×n(n+1)/2 → …×n×n.

    >>> square(torch.tensor([1.0, 2.0, 3.0]), 2).tolist()
    [[1.0, 2.0], [0.0, 3.0]]
    """
    if entries.shape[-1] != n * (n + 1) // 2:
        raise ValueError(f"a triangular {n}×{n} matrix has {n * (n + 1) // 2} entries, not {entries.shape[-1]}")
    r = entries.new_zeros(*entries.shape[:-1], n, n)
    rows, columns = torch.triu_indices(n, n, device=entries.device)
    r[..., rows, columns] = entries
    return r


def random_like(rs: Tensor, rows: int, draw: torch.Generator) -> Tensor:
    """Correlations of independent normal features with the lengths of those whose correlations are given: J×n×n.

    A control: what is aligned with them is decorrelated, and learns nothing from another client.
    """
    noise = torch.randn(len(rs), max(rows, rs.shape[-1]), rs.shape[-1], generator=draw)
    drawn = torch.stack([feature_correlation(unit_columns(z)) for z in noise])
    return drawn * torch.linalg.vector_norm(rs, dim=1, keepdim=True)


def traces(rs: Tensor) -> Tensor:
    """Tr(R) of each: J×n×n → J.

    >>> traces(torch.stack([torch.eye(2), 3 * torch.eye(2)])).tolist()
    [2.0, 6.0]
    """
    return rs.diagonal(dim1=-2, dim2=-1).sum(-1)


def distances(bank: Mapping[int, Tensor], clients: int) -> list[list[float | None]]:
    """Euclidean distance between any two clients' R̄ (Figure 6), None where one is missing.

    >>> distances({0: torch.eye(2), 2: torch.zeros(2, 2)}, 3)
    [[0.0, None, 1.4142135381698608], [None, None, None], [1.4142135381698608, None, 0.0]]
    """
    return [
        [float(torch.dist(bank[i], bank[j])) if i in bank and j in bank else None for j in range(clients)]
        for i in range(clients)
    ]


def choose(bank: Mapping[int, Tensor], clients: Sequence[int], peers: int, seed: int, index: int) -> dict[int, Tensor]:
    """For each client the R̄ of the others, J×n×n: all of them, or ``peers`` drawn for round ``index``.

    >>> bank = {k: torch.full((1, 1), float(k)) for k in range(4)}
    >>> {k: r.flatten().tolist() for k, r in choose(bank, [1, 2], 0, seed=0, index=5).items()}
    {1: [0.0, 2.0, 3.0], 2: [0.0, 1.0, 3.0]}
    >>> len(choose(bank, [1], 2, seed=0, index=5)[1])
    2
    """
    received = {}
    for k in clients:
        others = sorted(set(bank) - {k})
        if 0 < peers < len(others):
            order = torch.randperm(len(others), generator=generator(seed, "peers", index, k))
            others = sorted(others[i] for i in order[:peers].tolist())
        if others:
            received[k] = torch.stack([bank[j] for j in others])
    return received
