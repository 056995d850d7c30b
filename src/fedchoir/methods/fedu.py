"""FedU. Zhuang et al., Collaborative Unsupervised Visual Representation Learning from Decentralized Data, ICCV 2021."""

from fedchoir.core.aggregation import blend
from fedchoir.methods.api import Client, Field
from fedchoir.methods.fedbyol import FedBYOL, divergence, online
from fedchoir.methods.self_supervised import SelfSupervisedParams
from fedchoir.payload import Payload


class FedUParams(SelfSupervisedParams):
    threshold: float = Field(
        0.4, ge=0, description="μ: the predictor is updated if the encoder's mean divergence per layer (L2) is less"
    )


class FedU(FedBYOL):
    """Clients load the average encoder, and the average predictor only where their own encoder has not diverged from
    it. The target network stays local. A client that has not trained yet loads everything.
    """

    name = "fedu"
    title = "self-supervised, predictor updated unless diverged"
    paper = "Zhuang et al., ICCV 2021"
    Params = FedUParams
    params: FedUParams

    def download(self, client: Client, received: Payload) -> None:
        if "trained" not in client.memory:
            return super().download(client, received)
        near = divergence(client.model, received.under("weights")) < self.params.threshold
        for name, module in online(client).items():
            if name == "predictor":
                blend(module, received.under(name), near.float())
            else:
                module.load_state_dict(received.under(name))
