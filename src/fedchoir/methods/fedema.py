"""FedEMA. Zhuang, Wen and Zhang, Divergence-aware Federated Self-Supervised Learning, ICLR 2022."""

from fedchoir.core.aggregation import blend
from fedchoir.methods.api import Client, Field
from fedchoir.methods.fedbyol import FedBYOL, divergence, online
from fedchoir.methods.self_supervised import SelfSupervisedParams
from fedchoir.payload import Payload


class FedEMAParams(SelfSupervisedParams):
    tau: float = Field(0.7, ge=0, le=1, description="τ: the first μ, the share of its own network that a client keeps")


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

    def download(self, client: Client, received: Payload) -> None:
        if "trained" not in client.memory:
            return super().download(client, received)
        distance = divergence(client.model, received.under("weights"))
        client.memory.setdefault("scale", self.params.tau / distance.clamp_min(1e-12))
        keep = (client.stored_tensor("scale") * distance).clamp(max=1)
        for name, module in online(client).items():
            blend(module, received.under(name), 1 - keep)
