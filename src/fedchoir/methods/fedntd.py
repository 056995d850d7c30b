"""FedNTD. Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated Learning,
NeurIPS 2022."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedchoir.core.client import Client, Teacher
from fedchoir.core.settings import Settings
from fedchoir.core.training import Batch
from fedchoir.losses import fntd
from fedchoir.methods.fedavg import FedAvg


class FedNTDParams(Settings):
    ntd_weight: float = Field(1.0, ge=0, description="β: weight of the not-true distillation")
    temperature: float = Field(1.0, gt=0, description="τ: temperature of the not-true distillation")
    form: Literal["renormalised", "masked"] = Field(
        "renormalised", description="over the wrong classes alone, or FCCL+'s form over all of them, target left out"
    )


class FedNTD(FedAvg):
    """FedAvg that keeps what the global model says about the wrong classes, and learns the true one freely."""

    name = "fedntd"
    title = "FedAvg with not-true distillation from the global model"
    paper = "Lee et al., NeurIPS 2022"
    Params = FedNTDParams
    supports_dp = True
    params: FedNTDParams

    def local_update(self, client: Client) -> None:
        # The round has just brought the global model: the client's own is equal to it here.
        client.train(self.local_loss, teacher=Teacher(client.snapshot()))

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        p = self.params
        z = client.logits(batch.images)
        distance = fntd(z, batch["teacher"], batch.labels, p.temperature, p.form)
        return cross_entropy(z, batch.labels) + p.ntd_weight * distance
