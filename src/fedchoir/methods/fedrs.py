"""FedRS. Li and Zhan, FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data,
KDD 2021."""

import torch
from torch import Tensor

from fedchoir.methods.api import Batch, Client, Field, Settings
from fedchoir.methods.fedavg import FedAvg


class FedRSParams(Settings):
    alpha: float = Field(0.5, ge=0, le=1, description="α: scale of the logits of classes that a client lacks")


class FedRS(FedAvg):
    """FedAvg with a restricted softmax: in training, logits of classes that a client lacks are scaled by α.

    This limits the push on the logits of missing classes. A client that has every class trains as in FedAvg;
    predictions are not scaled.
    """

    name = "fedrs"
    title = "FedAvg with a softmax restricted for missing classes"
    paper = "Li and Zhan, KDD 2021"
    Params = FedRSParams
    params: FedRSParams

    def local_update(self, client: Client) -> None:
        client.memory["owned"] = client.class_counts() > 0
        super().local_update(client)

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        z = client.logits(batch.inputs)
        restricted = torch.where(client.stored_tensor("owned"), z, self.params.alpha * z)
        return client.cross_entropy(restricted, batch.labels)
