"""Membership inference: guess from a model's loss on a sample whether the sample was in its training set.

The loss threshold of Yeom et al. (2018). An AUC of 0.5 is guessing, 1.0 is certainty.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} (95 %: {self.low:.2f} to {self.high:.2f})"


def loss_attack(seen: Tensor, unseen: Tensor) -> Estimate:
    """The AUC of telling training samples by their smaller loss, with Hanley and McNeil's standard error (1982).

    Args:
        seen: losses of training samples.
        unseen: losses of samples that the model has not seen.

    >>> print(loss_attack(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.4, 0.5])))
    1.00 (95 %: 1.00 to 1.00)
    """
    truth = [1] * len(seen) + [0] * len(unseen)
    auc = float(roc_auc_score(truth, -torch.cat([seen, unseen]).double().cpu().numpy()))
    both_seen, both_unseen = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = auc * (1 - auc) + (len(seen) - 1) * (both_seen - auc**2) + (len(unseen) - 1) * (both_unseen - auc**2)
    spread = 1.96 * math.sqrt(max(variance, 0.0) / (len(seen) * len(unseen)))
    return Estimate(auc, max(0.0, auc - spread), min(1.0, auc + spread))


@torch.no_grad()
def losses(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss on every sample."""
    return F.cross_entropy(logits, labels, reduction="none")


def distilled(student: nn.Module, released: Sequence[tuple[Tensor, Tensor]], epochs: int = 40) -> nn.Module:
    """The student, trained to give the released logits on public samples: all that an attacker needs to guess
    training samples without ever having the model."""
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
    student.train()
    for _ in range(epochs):
        for inputs, logits in released:
            optimizer.zero_grad()
            F.mse_loss(student(inputs), logits).backward()
            optimizer.step()
    return student.eval()
