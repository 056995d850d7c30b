"""Class prototypes: computing and fusing them, contrastive losses against them, and mixing of features."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedchoir.losses._common import cosines, one_hot, product


def class_prototypes(h: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Mean feature of every class.

    FedCT eq. 1: u_k = mean of h over the samples of class k.

    Args:
        h: features, B×d.
        labels: classes, B; labels outside 0…C−1 are ignored.
        classes: C.

    Returns:
        Prototypes, C×d, and the number of samples of each class, C, both in the features' dtype. A class without
        samples has a zero prototype and count 0. Merge partial results by Σ count·u / Σ count.

    >>> u, counts = class_prototypes(torch.tensor([[1.0, 0.0], [3.0, 2.0]]), torch.tensor([1, 1]), classes=2)
    >>> u.tolist(), counts.tolist()
    ([[0.0, 0.0], [2.0, 1.0]], [0.0, 2.0])
    """
    mask = one_hot(labels, classes).to(h.dtype)
    counts = mask.sum(dim=0)
    return product(mask.T, h) / counts.clamp_min(1).unsqueeze(1), counts


def fuse_prototypes(
    global_prototypes: Tensor, local_prototypes: Tensor, local_counts: Tensor, weight: float = 0.5
) -> Tensor:
    """Fuse the global prototypes with one client's.

    FedCT eq. 6: U_f = λ U_g + (1 − λ) U_l; the global prototype for a class that the client lacks.

    Args:
        global_prototypes: U_g, C×d.
        local_prototypes: U_l, C×d.
        local_counts: samples of each class, C; 0 marks a class that the client lacks.
        weight: λ_fuse.

    >>> u_g, u_l = torch.tensor([[2.0], [4.0]]), torch.tensor([[0.0], [0.0]])
    >>> fuse_prototypes(u_g, u_l, torch.tensor([3.0, 0.0])).tolist()
    [[1.0], [4.0]]
    """
    fused = weight * global_prototypes + (1 - weight) * local_prototypes
    return torch.where((local_counts > 0).unsqueeze(1), fused, global_prototypes)


def prototype_contrast(
    h: Tensor, labels: Tensor, prototypes: Tensor, temperature: float, present: Tensor | None = None
) -> Tensor:
    """FedProc's contrastive loss: draw features to the prototype of their class, repel them from the others.

    FedProc (Mu et al., 2023), its global prototypical contrastive loss, with cosine similarity:

        L = mean_b −log( exp(cos(h, u_y)/τ) / Σ_k exp(cos(h, u_k)/τ) )

    Args:
        h: features, B×d.
        labels: classes, B.
        prototypes: C×d; detached.
        temperature: τ.
        present: C booleans, False for a class without a prototype: it is excluded from the sum, and its samples
            from the mean (0 if none is left). Default: all True.

    >>> u = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> h, y = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
    >>> round(prototype_contrast(h, y, u, temperature=1.0).item(), 4)  # log(1 + 1/e)
    0.3133
    >>> prototype_contrast(h, y, u, temperature=1.0, present=torch.tensor([True, False])).item()
    0.0
    """
    logits = cosines(h, prototypes.detach()) / temperature
    if present is None:
        return F.cross_entropy(logits, labels)
    present = present.bool()
    # A finite floor: with −∞ the gradient of excluded samples would be 0·∞.
    logits = logits.masked_fill(~present, torch.finfo(logits.dtype).min)
    counted = present[labels]
    losses = F.cross_entropy(logits, labels, reduction="none").masked_fill(~counted, 0.0)
    return losses.sum() / counted.sum().clamp_min(1)


def apcl(
    f: Tensor,
    labels: Tensor,
    prototypes: Tensor,
    temperature: float,
    extrapolation: float,
    present: Tensor | None = None,
) -> Tensor:
    """Augmented prototypical contrastive loss: `prototype_contrast` on extrapolated features.

    FedCT eq. 7, averaged over the batch:

        f_hybrid = f + λ (f − u_y)
        L = −log( exp(cos(f_hybrid, u_y)/τ) / Σ_k exp(cos(f_hybrid, u_k)/τ) )

    Args:
        f: features, B×d.
        labels: classes, B.
        prototypes: fused prototypes, C×d; detached.
        temperature: τ₂.
        extrapolation: λ_hy; 0 gives `prototype_contrast`.
        present: as in `prototype_contrast`.

    >>> u = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> f, y = torch.tensor([[1.0, 0.5]]), torch.tensor([0])
    >>> bool(apcl(f, y, u, 0.5, extrapolation=0.5) > prototype_contrast(f, y, u, 0.5))
    True
    """
    hybrid = f + extrapolation * (f - prototypes.detach()[labels])
    return prototype_contrast(hybrid, labels, prototypes, temperature, present)


def mixed_features(f_a: Tensor, f_b: Tensor, weight: float) -> Tensor:
    """Mix the features of two samples, or of a sample and a prototype.

    FedCT eq. 8: f_mix = λ f_a + (1 − λ) f_b.

    Args:
        f_a: features, B×d.
        f_b: features or prototypes, B×d.
        weight: λ_mix.

    >>> mixed_features(torch.tensor([[4.0]]), torch.tensor([[0.0]]), weight=0.25).tolist()
    [[1.0]]
    """
    return weight * f_a + (1 - weight) * f_b


def mfa(logits: Tensor, labels_a: Tensor, labels_b: Tensor, weight: float) -> Tensor:
    """Mixup-based feature augmentation: the classifier's loss on mixed features.

    FedCT eq. 10, averaged over the batch; equal to CE against the mixed label of eq. 9:

        L = λ CE(z, y_a) + (1 − λ) CE(z, y_b)

    Args:
        logits: the classifier's logits z on `mixed_features`, B×C.
        labels_a: classes of the first samples, B.
        labels_b: classes of the second samples, B.
        weight: λ_mix.

    >>> round(mfa(torch.zeros(1, 4), torch.tensor([0]), torch.tensor([3]), weight=0.3).item(), 4)  # log 4
    1.3863
    """
    return weight * F.cross_entropy(logits, labels_a) + (1 - weight) * F.cross_entropy(logits, labels_b)
