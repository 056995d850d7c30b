"""FedASAM. Caldarola, Caputo and Ciccone, Improving Generalization in Federated Learning by Seeking Flat Minima,
ECCV 2022."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from fedchoir.core.client import Client
from fedchoir.core.settings import Settings
from fedchoir.core.teachers import frozen_batchnorm_stats
from fedchoir.core.training import Batch
from fedchoir.methods.fedavg import FedAvg


class FedASAMParams(Settings):
    rho: float = Field(0.5, ge=0, description="ρ: how far away the worst weights are looked for")
    eta: float = Field(0.01, ge=0, description="η: added to the size of a weight, which scales its share of the way")
    adaptive: bool = Field(True, description="ASAM; off: SAM (FedSAM), where all weights have the same scale")


class FedASAM(FedAvg):
    """FedAvg that seeks flat minima: each step follows the gradient at the worst weights nearby.

    The averaging of server models over rounds (SWA), which the paper adds as a second idea, is not here.
    """

    name = "fedasam"
    title = "FedAvg with adaptive sharpness-aware local steps"
    paper = "Caldarola et al., ECCV 2022"
    Params = FedASAMParams
    params: FedASAMParams

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        """The loss at w + ε, whose gradient with respect to w is the gradient there, because ε is held fixed."""
        weights = dict(client.model.named_parameters())
        here = super().local_loss(client, batch)
        shift = self.worst_shift(weights, torch.autograd.grad(here, list(weights.values())))
        moved = {name: w + shift[name] for name, w in weights.items()}
        with frozen_batchnorm_stats(client.model), client._autocast():  # the statistics moved at w already
            z = functional_call(client.model, moved, (batch.images,)).float()
        return cross_entropy(z, batch.labels)

    def worst_shift(self, weights: Mapping[str, Tensor], gradients: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """ε = ρ T² g / ‖T g‖ with T = |w| + η for weights, and 1 for biases."""
        scales = {name: self.scale(name, w.detach()) for name, w in weights.items()}
        scaled = {name: scales[name] * g for name, g in zip(weights, gradients, strict=True)}
        norm = torch.stack([s.norm() for s in scaled.values()]).norm().clamp_min(1e-12)
        return {name: self.params.rho * scales[name] * s / norm for name, s in scaled.items()}

    def scale(self, name: str, w: Tensor) -> Tensor:
        if not self.params.adaptive or not name.endswith("weight"):
            return torch.ones_like(w)
        return w.abs() + self.params.eta
