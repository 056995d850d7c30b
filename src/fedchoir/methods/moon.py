"""MOON. Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedchoir.core.client import Client, Teacher
from fedchoir.core.settings import Settings
from fedchoir.core.training import Batch
from fedchoir.losses import moon
from fedchoir.methods.fedavg import FedAvg


class MOONParams(Settings):
    mu: float = Field(1.0, ge=0, description="μ: weight of the model-contrastive term")
    temperature: float = Field(0.5, gt=0, description="τ: temperature of the model-contrastive term")


class MOON(FedAvg):
    """FedAvg whose features stay nearer to the global model's than to those of the client's own last model.

    Features are what the classifier sees, without the projection head that the first paper adds. Both references are
    frozen and in eval mode. A client's first round has no last model, so it is cross-entropy alone.
    """

    name = "moon"
    title = "FedAvg with features drawn to the global model's"
    paper = "Li et al., CVPR 2021"
    Params = MOONParams
    params: MOONParams

    def local_update(self, client: Client) -> None:
        if "previous" in client.memory:
            # The round has just brought the global model: the client's own is equal to it here.
            around = Teacher(client.snapshot(), output="features")
            before = Teacher(client.stored_weights("previous"), output="features")
            client.train(self.local_loss, h_global=around, h_previous=before)
        else:
            client.train(self.supervised_loss)
        client.memory["previous"] = client.snapshot()

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        h, z = client.features_and_logits(batch.images)
        contrast = moon(h, batch["h_global"], batch["h_previous"], self.params.temperature)
        return cross_entropy(z, batch.labels) + self.params.mu * contrast
