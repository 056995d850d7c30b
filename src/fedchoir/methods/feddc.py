"""FedDC. Gao et al., FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction,
CVPR 2022."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedchoir.core.client import Client
from fedchoir.core.settings import Settings
from fedchoir.core.training import Batch
from fedchoir.losses import proximal
from fedchoir.methods.fedavg import FedAvg
from fedchoir.payload import MODEL, Payload, sends, state_payload

State = dict[str, Tensor]


class FedDCParams(Settings):
    optimizer: Literal["sgd"] = Field("sgd", description="the correction reads gradients off steps of plain SGD")
    alpha: float = Field(0.01, ge=0, description="α: weight of the penalty that ties weights and drift together")


class FedDC(FedAvg):
    """FedAvg in which every client learns how far it drifts, and the server averages weights with the drift undone.

    Local loss: CE + α/2·‖h + θ − w‖² + ⟨θ, g − g_i⟩ with the global weights w, the client's drift h, and gradients
    g_i, g estimated from the last updates of the client and of all: −Δθ/(learning rate × steps). After training,
    h ← h + Δθ, and θ + h goes into the average.
    """

    name = "feddc"
    title = "FedAvg with local drift learned and corrected"
    paper = "Gao et al., CVPR 2022"
    Params = FedDCParams
    params: FedDCParams

    def download(self, client: Client, received: Payload) -> None:
        super().download(client, received)
        client.memory["everyone"] = {n: t for n, t in received.under("gradient").items() if n in weights(client)}

    def local_update(self, client: Client) -> None:
        w = weights(client)
        nothing = {n: torch.zeros_like(t) for n, t in w.items()}
        for name in ("drift", "gradient", "everyone"):
            client.memory.setdefault(name, nothing)
        drift, own, everyone = (client.stored_weights(name) for name in ("drift", "gradient", "everyone"))
        client.memory["anchor"] = {n: w[n] - drift[n] for n in w}
        client.memory["correction"] = {n: everyone[n] - own[n] for n in w}
        super().local_update(client)
        update = {n: t - w[n] for n, t in weights(client).items()}
        client.memory["drift"] = {n: drift[n] + update[n] for n in w}
        client.memory["gradient"] = {n: -t / self.reach(client) for n, t in update.items()}

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        theta = list(client.model.parameters())
        tie = proximal(theta, client.stored_weights("anchor").values())
        correction = client.stored_weights("correction").values()
        turn = torch.stack([(t * c).sum() for t, c in zip(theta, correction, strict=True)]).sum()
        return super().local_loss(client, batch) + self.params.alpha * tie + turn

    @sends(weights=MODEL, gradient=MODEL)
    def upload(self, client: Client) -> Payload:
        """θ + h and g_i; both with BatchNorm's statistics as they are."""
        state = client.model.state_dict()
        drift, gradient = client.stored_weights("drift"), client.stored_weights("gradient")
        ahead = {n: t + drift[n] if n in drift else t for n, t in state.items()}
        return Payload({**state_payload("weights", ahead), **state_payload("gradient", {**state, **gradient})})

    def reach(self, client: Client) -> float:
        """How far the local phase would go with gradients of length 1: learning rate × steps."""
        p = self.params
        steps = client.steps_per_epoch() * p.epochs_of(client.index)
        return p.lr(p.local_lr, client.round, client.rounds) * max(steps, 1)


def weights(client: Client) -> State:
    """A copy of what the client trains, without BatchNorm's statistics."""
    return {name: p.detach().clone() for name, p in client.model.named_parameters()}
