"""Losses on similarities between the samples of one batch: FISL and FRR."""

import torch
from torch import Tensor

from fedchoir.losses._common import cosines, kl, off_diagonal


def instance_similarity(h: Tensor, temperature: float = 0.02) -> Tensor:
    """How a client sees each public image relative to the others of the batch.

    FCCL+ (Huang et al., TPAMI 2023) eq. 3-4:

        S_uv = cos(h_u, h_v) / μ,   without the diagonal

    Every row loses its own entry, so the shape is B×(B−1); the (B−1)×(B−1) of eq. 4 is a slip. It does not
    depend on the width d, which is what lets different architectures compare it.

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
    """Federated instance similarity learning: see the public batch as the federation sees it.

    FCCL+ (Huang et al., TPAMI 2023) eq. 5, averaged over the B rows:

        L = KL(σ(S̄) ‖ σ(S)),   σ = softmax along a row

    Args:
        s: the client's similarities, B×(B−1), from `instance_similarity`.
        s_mean: mean over clients of the similarities (not of their softmax), B×(B−1); no gradient flows
            into it.

    >>> s = torch.tensor([[0.0, 1.0], [2.0, 0.0], [1.0, 1.0]])
    >>> fisl(s, s).item()
    0.0
    >>> bool(fisl(s, s.flip(1)) > 0)
    True
    """
    return kl(s_mean, s)


def frr(h: Tensor, h_old: Tensor) -> Tensor:
    """Feature relationship regularisation: keep the relations between samples that the public phase left.

    FBCL eq. 7. The paper defers the relation matrix φ to an appendix that its text lacks; here φ is the
    B×B matrix of cosine similarities and l the mean squared error:

        L = mean_{u,v} (cos(h_u, h_v) − cos(h°_u, h°_v))²

    Args:
        h: the current model's mapped features, B×d.
        h_old: the mapped features of the same images under the model after the last public phase, B×d';
            no gradient flows into it.

    >>> h = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> frr(5 * h, h).item()
    0.0
    >>> frr(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), h).item()
    0.5
    """
    old = h_old.detach()
    return torch.mean((cosines(h, h) - cosines(old, old)).square())
