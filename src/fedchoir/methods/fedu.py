"""FedU. Zhuang et al., Collaborative Unsupervised Visual Representation Learning from Decentralized Data, ICCV 2021."""

from typing import Literal

from fedchoir.core.aggregation import blend
from fedchoir.methods.api import Client, Field
from fedchoir.methods.fedbyol import FedBYOL, FedBYOLParams, divergence, online
from fedchoir.payload import Payload


class FedUParams(FedBYOLParams):
    threshold: float = Field(
        0.4, ge=0, description="μ: the predictor is updated if the encoder's mean divergence per layer (L2) is less"
    )
    target_network: Literal["global", "local"] = Field("local", description="BYOL's target network after a download")


class FedU(FedBYOL):
    """Clients load the average encoder, and the average predictor only where their own encoder has not diverged from
    it. The target network stays local. A client that has not trained yet loads everything. Every decision about the
    predictor is recorded (1: updated).
    """

    name = "fedu"
    title = "self-supervised, predictor updated unless diverged"
    paper = "Zhuang et al., ICCV 2021"
    Params = FedUParams
    params: FedUParams

    def load_average(self, client: Client, received: Payload) -> None:
        if "trained" not in client.memory:
            return super().load_average(client, received)
        distance = divergence(client.model, received.under("weights"))
        near = (distance < self.params.threshold).float()
        client.log_value("divergence", distance)
        client.log_value("predictor_updated", near)
        for name, module in online(client).items():
            if name == "predictor":
                blend(module, received.under(name), near)
            else:
                module.load_state_dict(received.under(name))
