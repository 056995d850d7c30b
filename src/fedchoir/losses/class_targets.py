"""Distillation from one target per class instead of one per sample: FD."""

import torch.nn.functional as F
from torch import Tensor

from fedchoir.losses._common import check_choice

CLASS_OUTPUTS = ("probabilities", "logits")


def class_distillation(
    z: Tensor, labels: Tensor, targets: Tensor, present: Tensor | None = None, outputs: str = "probabilities"
) -> Tensor:
    """Draw a sample's output to the mean output of its class over other clients, averaged over the batch.

    FD (Jeong et al., 2018), its distillation regulariser, cross-entropy between normalised outputs:

        L = mean_b −Σ_k F̂_{y_b,k} log σ(z_b)_k

    Args:
        z: logits, B×C.
        labels: classes, B.
        targets: F̂, C×C: a row for each class; detached.
        present: C booleans, False for a class without a target: its samples count as 0. Default: all True.
        outputs: "probabilities": F̂ has probabilities (the paper). "logits": it has logits, and the loss is their mean
            squared difference to z (common in later implementations).

    >>> import torch
    >>> z, y, half = torch.zeros(1, 2), torch.tensor([0]), torch.tensor([[0.5, 0.5], [0.0, 1.0]])
    >>> round(class_distillation(z, y, half).item(), 4)  # log 2
    0.6931
    >>> class_distillation(z, y, half, outputs="logits").item()
    0.25
    """
    check_choice("outputs", outputs, CLASS_OUTPUTS)
    target = targets.detach()[labels]
    if outputs == "probabilities":
        each = -(target * F.log_softmax(z, dim=1)).sum(dim=1)
    else:
        each = (z - target).square().mean(dim=1)
    if present is not None:
        each = each.masked_fill(~present.bool()[labels], 0.0)
    return each.mean()
