"""Prediction by the nearest global prototype: the rule of FedProto and FedTGP."""

import torch
from torch import Tensor, nn

from fedchoir.models import Model

ABSENT = -1e9  # the score of a class without a prototype; finite, so that no metric becomes NaN


class NearestPrototype(nn.Module):
    """The global prototypes that a client has received, C×d, and scores by the distance to them.

    >>> nearest = NearestPrototype(classes=3, width=2)
    >>> nearest.store(torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 0.0]]), torch.tensor([True, True, False]))
    >>> nearest(torch.tensor([[3.0, 0.0]]), torch.zeros(1, 3)).tolist()
    [[-9.0, -16.0, -1000000000.0]]
    """

    prototypes: Tensor
    present: Tensor

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.register_buffer("prototypes", torch.zeros(classes, width))
        self.register_buffer("present", torch.zeros(classes, dtype=torch.bool))

    def store(self, prototypes: Tensor, present: Tensor) -> None:
        self.prototypes.copy_(prototypes)
        self.present.copy_(present)

    def forward(self, h: Tensor, z: Tensor) -> Tensor:
        """Scores −‖h − u_k‖² of features h (B×d); the head's logits z (B×C) while there are no prototypes."""
        distances = torch.cdist(h, self.prototypes, compute_mode="donot_use_mm_for_euclid_dist")
        scores = (-distances.square()).masked_fill(~self.present, ABSENT)
        return torch.where(self.present.any(), scores, z)


class PrototypeClassifier(nn.Module):
    """A model that predicts by the nearest prototype, as one module."""

    def __init__(self, model: Model, nearest: nn.Module) -> None:
        super().__init__()
        self.model, self.nearest = model, nearest

    def forward(self, inputs: Tensor) -> Tensor:
        return self.nearest(*self.model.features_and_logits(inputs))
