"""FedEMA. Zhuang, Wen and Zhang, Divergence-aware Federated Self-Supervised Learning, ICLR 2022."""

from typing import Literal

from fedchoir.core.aggregation import blend
from fedchoir.methods.api import Client, Field
from fedchoir.methods.fedbyol import FedBYOL, FedBYOLParams, divergence, online
from fedchoir.payload import Payload


class FedEMAParams(FedBYOLParams):
    tau: float = Field(0.7, ge=0, le=1, description="τ: the first μ, the share of its own network that a client keeps")
    divergence: Literal["average", "drift"] = Field(
        "average",
        description="‖w_g − w‖ between the average and the client's own encoder (paper), or between the encoder before "
        "and after the last local phase (released code)",
    )
    target_network: Literal["global", "local"] = Field("local", description="BYOL's target network after a download")


class FedEMA(FedBYOL):
    """Online encoder and predictor become μ·own + (1 − μ)·average, μ = min(λ‖w_g − w‖, 1): the more a client diverged,
    the more of its own network it keeps. λ is set at its first use so that μ = τ. A client that has not trained yet
    loads the average.
    """

    name = "fedema"
    title = "self-supervised, average mixed in by divergence"
    paper = "Zhuang et al., ICLR 2022"
    Params = FedEMAParams
    params: FedEMAParams

    def local_update(self, client: Client) -> None:
        before = client.snapshot() if self.params.divergence == "drift" else {}
        super().local_update(client)
        if before:
            client.memory["drift"] = divergence(client.model, before)

    def load_average(self, client: Client, received: Payload) -> None:
        drifted = self.params.divergence == "drift"
        if ("drift" if drifted else "trained") not in client.memory:
            return super().load_average(client, received)
        distance = client.stored_tensor("drift") if drifted else divergence(client.model, received.under("weights"))
        client.memory.setdefault("scale", self.params.tau / distance.clamp_min(1e-12))
        keep = (client.stored_tensor("scale") * distance).clamp(max=1)
        client.log_value("divergence", distance)
        client.log_value("mu", keep)
        for name, module in online(client).items():
            blend(module, received.under(name), 1 - keep)
