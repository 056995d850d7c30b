"""Consensus of several clients' predictions: sharpened, weighted by confidence, and of those who disagree."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedchoir.losses._common import kl, one_hot


def entropy_reduction(probabilities: Tensor, temperature: float = 0.1) -> Tensor:
    """Entropy reduction aggregation (ERA): sharpen the mean of the clients' predictions.

    DS-FL (Itahara et al., 2020): p̂ = σ(p̄ / T), the softmax of the mean probabilities, not of logits.

    Args:
        probabilities: p̄, B×C.
        temperature: T; predictions near the uniform one are sharpened if T < 1/C.

    >>> p = torch.tensor([[0.6, 0.3, 0.1]])
    >>> [round(x, 3) for x in entropy_reduction(p)[0].tolist()]
    [0.946, 0.047, 0.006]
    """
    return F.softmax(probabilities / temperature, dim=1)


def soft_cross_entropy(logits: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
    """Cross-entropy to a soft label, averaged over the weighted samples.

        L = −Σ_b w_b Σ_u t_b^u log σ(z_b)^u / Σ_b w_b,   0 where all weights are 0

    The distillation loss of DS-FL (Itahara et al., 2020) and of Selective-FD (Shao et al., 2024).

    Args:
        logits: z, B×C.
        target: t, B×C; detached.
        weights: w, B; detached. Default: all 1.

    >>> z, t = torch.zeros(2, 4), torch.tensor([[0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    >>> round(soft_cross_entropy(z, t).item(), 4), soft_cross_entropy(z, t, torch.zeros(2)).item()  # log 4, nothing
    (1.3863, 0.0)
    """
    per_sample = -(target.detach() * F.log_softmax(logits, dim=1)).sum(dim=1)
    if weights is None:
        return per_sample.mean()
    w = weights.detach()
    return (w * per_sample).sum() / w.sum().clamp_min(torch.finfo(w.dtype).tiny)


def confident_consensus(logits: Tensor, counted: Tensor | None = None) -> Tensor:
    """Mean of several clients' logits, weighted for each sample by the variance of a client's logits over the classes.

    Fed-ET (Cho et al., IJCAI 2022), its weighted consensus; a large variance means a confident prediction:

        s = Σ_k α_k z_k,   α_k = Var(z_k) / Σ_l Var(z_l)

    Args:
        logits: z, N×B×C.
        counted: N×B booleans, False where a client is left out of both sums. Default: all True.

    Returns:
        s, B×C; zeros for a sample on which nobody counts or all variances are 0.

    >>> z = torch.tensor([[[3.0, -3.0]], [[0.0, 1.0]]])  # variances 9 and 1/4
    >>> [round(x, 3) for x in confident_consensus(z)[0].tolist()]
    [2.919, -2.892]
    """
    variance = logits.var(dim=2, correction=0)
    if counted is not None:
        variance = variance * counted
    weights = variance / variance.sum(dim=0).clamp_min(torch.finfo(logits.dtype).tiny)
    return (weights.unsqueeze(2) * logits).sum(dim=0)


def agreed_labels(logits: Tensor, votes: Tensor) -> Tensor:
    """The class with the most votes of a client and its helpers, as one-hot labels; the first of several.

    FedMatch (Jeong et al., ICLR 2021), its agreement-based pseudo labels: ŷ = MAX(1(p) + Σ_j 1(p_j)), where 1 is the
    one-hot vector of the largest probability.

    Args:
        logits: the client's own, B×C; detached.
        votes: Σ_j 1(p_j), how many helpers predict each class, B×C.

    >>> own = torch.tensor([[3.0, 0.0, 0.0], [3.0, 0.0, 0.0]])
    >>> agreed_labels(own, torch.tensor([[0.0, 0.0, 2.0], [0.0, 1.0, 1.0]])).tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """
    own = one_hot(logits.detach().argmax(dim=1), logits.shape[1])
    return one_hot((own + votes.detach()).argmax(dim=1), logits.shape[1]).to(logits)


def diversity_kl(logits: Tensor, diverse: Tensor, exists: Tensor, temperature: float = 1.0) -> Tensor:
    """KL to the consensus of the clients that disagree, over the samples on which somebody does.

    Fed-ET (Cho et al., IJCAI 2022), its diversity regularisation, averaged over all B samples:

        L = Σ_b e_b KL(σ(d_b / T) ‖ σ(z_b / T)) / B

    Args:
        logits: z, B×C.
        diverse: d, B×C; detached.
        exists: e, B, 0 for a sample on which all agree: it adds nothing.
        temperature: T.

    >>> z, d = torch.zeros(2, 2), torch.tensor([[1000.0, 0.0], [1000.0, 0.0]])
    >>> round(diversity_kl(z, d, torch.tensor([1.0, 0.0])).item(), 4)  # half of log 2
    0.3466
    """
    # Where all agree, the target is the client's own output, whose divergence and gradient are 0.
    target = torch.where(exists.detach().unsqueeze(1) > 0, diverse.detach(), logits.detach())
    return kl(target / temperature, logits / temperature)
