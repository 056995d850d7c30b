"""FedDC. Gao et al., FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction,
CVPR 2022."""

from typing import Literal

import torch
from torch import Tensor

from fedchoir.losses import proximal
from fedchoir.methods.api import Batch, Client, Field, Settings
from fedchoir.methods.fedavg import FedAvg, copy_parameters
from fedchoir.payload import MODEL, Payload, sends, state_payload


class FedDCParams(Settings):
    optimizer: Literal["sgd"] = Field("sgd", description="the correction derives gradients from steps of plain SGD")
    alpha: float = Field(0.01, ge=0, description="α: weight of the drift penalty ‖h + θ − w‖²")


class FedDC(FedAvg):
    """FedAvg in which every client estimates its drift, and the server averages drift-corrected weights.

    Local loss: CE + α/2·‖h + θ − w‖² + ⟨θ, g − g_i⟩ with the global weights w, the client's drift h, and gradients
    g_i, g estimated from the last updates of the client and of all clients: −Δθ/(learning rate × steps). After
    training, h ← h + Δθ; the server averages θ + h.
    """

    name = "feddc"
    title = "FedAvg with local drift estimated and corrected"
    paper = "Gao et al., CVPR 2022"
    Params = FedDCParams
    params: FedDCParams

    def download(self, client: Client, received: Payload) -> None:
        super().download(client, received)
        parameters = dict(client.model.named_parameters())
        client.memory["mean_gradient"] = {n: t for n, t in received.under("gradient").items() if n in parameters}

    def local_update(self, client: Client) -> None:
        w = copy_parameters(client)
        zeros = {n: torch.zeros_like(t) for n, t in w.items()}
        for name in ("drift", "gradient", "mean_gradient"):
            client.memory.setdefault(name, zeros)
        drift, own, mean = (client.stored_weights(name) for name in ("drift", "gradient", "mean_gradient"))
        client.memory["anchor"] = {n: w[n] - drift[n] for n in w}
        client.memory["correction"] = {n: mean[n] - own[n] for n in w}
        super().local_update(client)
        update = {n: t - w[n] for n, t in copy_parameters(client).items()}
        client.memory["drift"] = {n: drift[n] + update[n] for n in w}
        client.memory["gradient"] = {n: -t / self.step_length(client) for n, t in update.items()}

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        theta = list(client.model.parameters())
        penalty = proximal(theta, client.stored_weights("anchor").values())
        corrections = client.stored_weights("correction").values()
        correction = torch.stack([(t * c).sum() for t, c in zip(theta, corrections, strict=True)]).sum()
        return super().local_loss(client, batch) + self.params.alpha * penalty + correction

    @sends(weights=MODEL, gradient=MODEL)
    def upload(self, client: Client) -> Payload:
        """θ + h and g_i; both with BatchNorm's statistics unchanged."""
        state = client.model.state_dict()
        drift, gradient = client.stored_weights("drift"), client.stored_weights("gradient")
        corrected = {n: t + drift[n] if n in drift else t for n, t in state.items()}
        return Payload({**state_payload("weights", corrected), **state_payload("gradient", {**state, **gradient})})

    def step_length(self, client: Client) -> float:
        """Learning rate × number of local steps."""
        p = self.params
        steps = client.steps_per_epoch() * p.epochs_of(client.index)
        return p.lr(p.local_lr, client.round, client.rounds) * max(steps, 1)
