"""FedEMA. Zhuang, Wen and Zhang, Divergence-aware Federated Self-Supervised Learning, ICLR 2022."""

from __future__ import annotations

from pydantic import Field

from fedchoir.core.client import Client
from fedchoir.methods.fedbyol import FedBYOL, blend, divergence, online
from fedchoir.methods.self_supervised import SelfSupervisedParams
from fedchoir.payload import Payload


class FedEMAParams(SelfSupervisedParams):
    tau: float = Field(0.7, ge=0, le=1, description="τ: share of its own network that a client keeps at first")


class FedEMA(FedBYOL):
    """Online encoder and predictor become μ·own + (1 − μ)·average, μ = min(λ‖w_g − w‖, 1): the farther the client's
    images have led it away, the more of its own it keeps. λ is set at first use, so that μ is τ there.

    A client that has not trained yet has nothing to keep: it takes the average as it is.
    """

    name = "fedema"
    title = "self-supervised, average mixed in by divergence"
    paper = "Zhuang et al., ICLR 2022"
    Params = FedEMAParams
    params: FedEMAParams

    def download(self, client: Client, received: Payload) -> None:
        if "trained" not in client.memory:
            return super().download(client, received)
        distance = divergence(client.model, received.under("weights"))
        client.memory.setdefault("scale", self.params.tau / distance.clamp_min(1e-12))
        keep = (client.stored_tensor("scale") * distance).clamp(max=1)
        for name, module in online(client).items():
            blend(module, received.under(name), 1 - keep)
