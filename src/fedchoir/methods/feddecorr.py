"""FedDecorr. Shi et al., Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous Federated
Learning, ICLR 2023."""

from typing import Literal

from torch import Tensor

from fedchoir.losses import decorrelation
from fedchoir.methods.api import Batch, Client, Field, Settings
from fedchoir.methods.fedavg import FedAvg


class FedDecorrParams(Settings):
    decorrelation_weight: float = Field(0.1, ge=0, description="β: weight of the decorrelation of features")
    scale: Literal["paper", "official"] = Field(
        "paper", description="of the decorrelation: mean squared correlation, or (B−1)²/B times it (released code)"
    )


class FedDecorr(FedAvg):
    """FedAvg with a penalty on correlations between feature dimensions, against dimensional collapse."""

    name = "feddecorr"
    title = "FedAvg with decorrelated features"
    paper = "Shi et al., ICLR 2023"
    Params = FedDecorrParams
    params: FedDecorrParams

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        p = self.params
        h, z = client.features_and_logits(batch.inputs)
        return client.cross_entropy(z, batch.labels) + p.decorrelation_weight * decorrelation(h, p.scale)
