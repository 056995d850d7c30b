"""Losses against global class prototypes: FedProto's distance, FedTGP's margin, FPL's clusters."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedchoir.losses._common import check_choice, cosines, one_hot

DISTANCES = ("mse", "squared", "euclidean")


def prototype_distance(
    h: Tensor, labels: Tensor, prototypes: Tensor, present: Tensor | None = None, distance: str = "mse"
) -> Tensor:
    """Distance of features to the global prototype of their class, averaged over the batch.

    FedProto (Tan et al., AAAI 2022) eq. 8, on single samples as in its appendix and in its released code; FPL (Huang
    et al., CVPR 2023), its consistent regularisation UPCR; FedTGP (Zhang et al., AAAI 2024), its local regularisation:

        L = mean_b d(h_b, u_{y_b})

    Args:
        h: features, B×d.
        labels: classes, B.
        prototypes: u, C×d; detached.
        present: C booleans, False for a class without a prototype: its samples count as 0. Default: all True.
        distance: "mse": ‖h − u‖²/d (the released codes); "squared": ‖h − u‖²; "euclidean": ‖h − u‖.

    >>> h, u, y = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 4.0], [0.0, 0.0]]), torch.tensor([0])
    >>> [prototype_distance(h, y, u, distance=name).item() for name in ("mse", "squared", "euclidean")]
    [12.5, 25.0, 5.0]
    >>> prototype_distance(h, y, u, torch.tensor([False, True])).item()
    0.0
    """
    check_choice("distance", distance, DISTANCES)
    difference = h - prototypes.detach()[labels]
    if distance == "euclidean":
        each = torch.linalg.vector_norm(difference, dim=1)
    else:
        each = difference.square().sum(dim=1) / (h.shape[1] if distance == "mse" else 1)
    if present is not None:
        each = each.masked_fill(~present.bool()[labels], 0.0)
    return each.mean()


def margin_contrast(prototypes: Tensor, h: Tensor, labels: Tensor, margin: float) -> Tensor:
    """FedTGP: every client prototype is nearer to the trainable prototype of its class than to all others, by a margin.

    FedTGP (Zhang et al., AAAI 2024), its adaptive-margin-enhanced contrastive loss, averaged over client prototypes:

        L = −log( e^{−(φ(h, û_y) + δ)} / (e^{−(φ(h, û_y) + δ)} + Σ_{k≠y} e^{−φ(h, û_k)}) ),   φ the Euclidean distance

    Args:
        prototypes: û, C×d: what is trained.
        h: the clients' prototypes, B×d; detached.
        labels: their classes, B.
        margin: δ.

    >>> u, h = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.zeros(1, 2)
    >>> round(margin_contrast(u, h, torch.tensor([0]), 0.0).item(), 4)  # log 2
    0.6931
    >>> round(margin_contrast(u, h, torch.tensor([0]), 3.0).item(), 4)  # log(1 + e³)
    3.0486
    """
    distances = torch.cdist(h.detach(), prototypes, compute_mode="donot_use_mm_for_euclid_dist")
    return F.cross_entropy(-distances - margin * one_hot(labels, len(prototypes)), labels)


def cluster_contrast(h: Tensor, labels: Tensor, clusters: Tensor, classes: Tensor, temperature: float) -> Tensor:
    """FPL's cluster prototypes contrastive loss: draw features to the clusters of their class, repel them from others.

    FPL (Huang et al., CVPR 2023), its CPCL, with cosine similarity, averaged over the batch:

        L = −log( Σ_{c ∈ P_y} e^{cos(h, c)/τ} / Σ_{c ∈ P} e^{cos(h, c)/τ} )

    Args:
        h: features, B×d.
        labels: classes, B. A sample whose class has no cluster counts as 0.
        clusters: cluster prototypes P of all classes, J×d; detached.
        classes: their classes, J; negative: the row is padding.
        temperature: τ.

    >>> clusters = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    >>> h, y, classes = torch.tensor([[2.0, 0.0]]), torch.tensor([0]), torch.tensor([0, 0, 1, -1])
    >>> round(cluster_contrast(h, y, clusters, classes, temperature=1.0).item(), 4)  # log(1 + 1/(2e))
    0.1688
    """
    similarity = cosines(h, clusters.detach()) / temperature
    own = labels.unsqueeze(1) == classes
    # A finite floor: with −∞ the gradient of a sample without clusters would be 0·∞.
    floor = torch.finfo(similarity.dtype).min
    every = similarity.masked_fill(classes < 0, floor).logsumexp(dim=1)
    positive = similarity.masked_fill(~own, floor).logsumexp(dim=1)
    return (every - positive).masked_fill(~own.any(dim=1), 0.0).mean()
