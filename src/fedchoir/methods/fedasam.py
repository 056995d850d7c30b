"""FedASAM. Caldarola, Caputo and Ciccone, Improving Generalization in Federated Learning by Seeking Flat Minima,
ECCV 2022."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.func import functional_call

from fedchoir.core.teachers import frozen_batchnorm_stats
from fedchoir.methods.api import Batch, Client, Field, Settings
from fedchoir.methods.fedavg import FedAvg


class FedASAMParams(Settings):
    rho: float = Field(0.5, ge=0, description="ρ: radius of the neighbourhood in which the worst weights are sought")
    eta: float = Field(0.01, ge=0, description="η: added to |w| in the scale of the adaptive neighbourhood")
    adaptive: bool = Field(True, description="ASAM; off: SAM (FedSAM), with scale 1 for all weights")


class FedASAM(FedAvg):
    """FedAvg with sharpness-aware steps: each follows the gradient at the worst weights nearby.

    The paper's second idea, stochastic weight averaging (SWA) of server models over rounds, is not implemented.
    """

    name = "fedasam"
    title = "FedAvg with adaptive sharpness-aware local steps"
    paper = "Caldarola et al., ECCV 2022"
    Params = FedASAMParams
    params: FedASAMParams

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        """The loss at w + ε. ε is detached, so the gradient with respect to w is the one at w + ε."""
        weights = {name: w for name, w in client.model.named_parameters() if w.requires_grad}
        loss = super().local_loss(client, batch)
        shift = self.worst_shift(weights, torch.autograd.grad(loss, list(weights.values())))
        moved = {name: w + shift[name] for name, w in weights.items()}
        with frozen_batchnorm_stats(client.model), client._autocast():  # they were updated at w already
            z = functional_call(client.model, moved, (batch.inputs,)).float()
        return client.cross_entropy(z, batch.labels)

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
