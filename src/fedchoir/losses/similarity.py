"""Losses on similarities between the samples of one batch: FISL and FRR."""

import torch
from torch import Tensor

from fedchoir.losses._common import cosines, kl, off_diagonal


def instance_similarity(h: Tensor, temperature: float = 0.02) -> Tensor:
    """Similarity of each sample to the other samples of the batch.

    FCCL+ (Huang et al., TPAMI 2023) eq. 3-4:

        S_uv = cos(h_u, h_v) / μ,   without the diagonal

    Every row loses its diagonal entry, so the shape is B×(B−1), not the (B−1)×(B−1) of eq. 4. It does not depend on
    the width d, so different architectures are comparable.

    Args:
        h: features, B×d with B ≥ 2.
        temperature: μ.

    Returns:
        B×(B−1): row u holds the similarities of u with every other sample, in batch order.

    >>> h = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
    >>> instance_similarity(h, temperature=0.5).tolist()
    [[2.0, 0.0], [2.0, 0.0], [0.0, 0.0]]
    """
    return off_diagonal(cosines(h, h)) / temperature


def fisl(s: Tensor, s_mean: Tensor) -> Tensor:
    """Federated instance similarity learning: match the clients' mean similarities.

    FCCL+ (Huang et al., TPAMI 2023) eq. 5, averaged over the B rows:

        L = KL(σ(S̄) ‖ σ(S)),   σ = softmax along a row

    Args:
        s: the client's similarities, B×(B−1), from `instance_similarity`.
        s_mean: mean over clients of the similarities (not of their softmax), B×(B−1); detached.

    >>> s = torch.tensor([[0.0, 1.0], [2.0, 0.0], [1.0, 1.0]])
    >>> fisl(s, s).item()
    0.0
    >>> bool(fisl(s, s.flip(1)) > 0)
    True
    """
    return kl(s_mean, s)


def frr(h: Tensor, h_old: Tensor) -> Tensor:
    """Feature relationship regularisation: preserve the similarities between samples after the public phase.

    FBCL eq. 7. The paper defines the relation matrix φ in an appendix that is not available; here φ is the B×B matrix
    of cosine similarities and l the mean squared error:

        L = mean_{u,v} (cos(h_u, h_v) − cos(h°_u, h°_v))²

    Args:
        h: the current model's mapped features, B×d.
        h_old: the mapped features of the model after the last public phase, B×d'; detached.

    >>> h = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> frr(5 * h, h).item()
    0.0
    >>> frr(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), h).item()
    0.5
    """
    old = h_old.detach()
    return torch.mean((cosines(h, h) - cosines(old, old)).square())
