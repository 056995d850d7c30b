"""FedNTD. Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated Learning,
NeurIPS 2022."""

from typing import Literal

from torch import Tensor

from fedchoir.losses import fntd
from fedchoir.methods.api import Batch, Client, Field, Settings, Teacher
from fedchoir.methods.fedavg import FedAvg


class FedNTDParams(Settings):
    ntd_weight: float = Field(1.0, ge=0, description="β: weight of the not-true distillation")
    temperature: float = Field(1.0, gt=0, description="τ: temperature of the not-true distillation")
    form: Literal["renormalised", "masked"] = Field(
        "renormalised", description="softmax over the wrong classes alone, or over all with the target masked (FCCL+)"
    )


class FedNTD(FedAvg):
    """FedAvg with distillation of the global model's probabilities of the wrong classes."""

    name = "fedntd"
    title = "FedAvg with not-true distillation from the global model"
    paper = "Lee et al., NeurIPS 2022"
    Params = FedNTDParams
    supports_dp = True
    params: FedNTDParams

    def local_update(self, client: Client) -> None:
        # The client has just loaded the global model.
        client.train(self.local_loss, teacher=Teacher(client.snapshot()))

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        p = self.params
        z = client.logits(batch.inputs)
        distance = fntd(z, batch["teacher"], batch.labels, p.temperature, p.form)
        return client.cross_entropy(z, batch.labels) + p.ntd_weight * distance
