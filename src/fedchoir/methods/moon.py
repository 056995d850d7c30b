"""MOON. Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021."""

from torch import Tensor

from fedchoir.losses import moon
from fedchoir.methods.api import Batch, Client, Field, Settings, Teacher
from fedchoir.methods.fedavg import FedAvg


class MOONParams(Settings):
    mu: float = Field(1.0, ge=0, description="μ: weight of the model-contrastive term")
    temperature: float = Field(0.5, gt=0, description="τ: temperature of the model-contrastive term")


class MOON(FedAvg):
    """FedAvg with a contrast: features near the global model's and far from the client's previous model's.

    Features are the classifier's input, without the paper's projection head. Both references are frozen and in eval
    mode. A client's first round has no previous model, so its loss is cross-entropy alone.
    """

    name = "moon"
    title = "FedAvg with features drawn to the global model's"
    paper = "Li et al., CVPR 2021"
    Params = MOONParams
    params: MOONParams

    def local_update(self, client: Client) -> None:
        if "previous" in client.memory:
            # The client has just loaded the global model.
            h_global = Teacher(client.snapshot(), output="features")
            h_previous = Teacher(client.stored_weights("previous"), output="features")
            client.train(self.local_loss, h_global=h_global, h_previous=h_previous)
        else:
            client.train(self.supervised_loss)
        client.memory["previous"] = client.snapshot()

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        h, z = client.features_and_logits(batch.inputs)
        contrast = moon(h, batch["h_global"], batch["h_previous"], self.params.temperature)
        return client.cross_entropy(z, batch.labels) + self.params.mu * contrast
